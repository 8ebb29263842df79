"""Latency fault tolerance: producers avoid brokers that were slow or failed.

After each try a broker is unavailable for a time that grows with its latency:

    latency in ms, at least    50   100   550   1,800   3,000   5,000   15,000
    unavailable for ms          0     0 2,000   5,000   6,000  10,000   30,000

A failure counts as a latency of 10,000 ms. A broker that refused a message is also unreachable,
until a later send or a probe succeeds there. Producers prefer available brokers, then reachable
ones.

Source: MQFaultStrategy.java, LatencyFaultToleranceImpl.java. As in the latter, a broker counts as
available when its time has passed, even if it is unreachable, so that it is tried again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from kourou.client.calls_consume import max_offset
from kourou.client.config import ProducerConfig
from kourou.client.instance import ClientInstance
from kourou.errors import RemoteError, TransportError
from kourou.model.queue import MessageQueue

_DETECTOR_PERIOD_MS: Final = 3_000

_LATENCIES_MS: Final = (50, 100, 550, 1_800, 3_000, 5_000, 15_000)
_UNAVAILABLE_MS: Final = (0, 0, 0, 2_000, 5_000, 6_000, 10_000, 30_000)
"""Unavailable times: the first for latencies below `_LATENCIES_MS[0]`, the next from that value on,
and so on."""

_FAILURE_LATENCY_MS: Final = 10_000


@dataclass(slots=True)
class _Broker:
    available_at_ms: int = 0
    is_reachable: bool = True
    probe_at_ms: int = 0


class LatencyFaults:
    """Latencies and failures of the brokers that one producer has used.

    The caller passes the current time, in epoch milliseconds.
    """

    def __init__(self) -> None:
        self._brokers: dict[str, _Broker] = {}

    def on_answered(self, broker_name: str, latency_ms: float, now_ms: int) -> None:
        """Record a try that succeeded, or that this client ended, as by cancellation."""
        self._update(broker_name, latency_ms, now_ms, is_reachable=True)

    def on_failed(self, broker_name: str, now_ms: int, *, is_reachable: bool) -> None:
        """Record a try that failed.

        Args:
            broker_name: the broker.
            now_ms: the current time.
            is_reachable: False marks the broker as unreachable until a later success: for a broker
                that refused, and, if brokers are probed, for one that did not answer.
        """
        self._update(broker_name, _FAILURE_LATENCY_MS, now_ms, is_reachable=is_reachable)

    def is_available(self, broker_name: str, now_ms: int) -> bool:
        """Return whether the broker's unavailable time has passed."""
        broker = self._brokers.get(broker_name)
        return broker is None or now_ms >= broker.available_at_ms

    def has_unavailable(self, now_ms: int) -> bool:
        """Return whether a broker's unavailable time has not passed."""
        for broker in self._brokers.values():  # noqa: SIM110 - `any` takes three times as long
            if now_ms < broker.available_at_ms:
                return True
        return False

    def is_reachable(self, broker_name: str) -> bool:
        """Return whether the broker is not marked as unreachable by its last try or probe."""
        broker = self._brokers.get(broker_name)
        return broker is None or broker.is_reachable

    def preferences(self, now_ms: int) -> tuple[Callable[[str], bool], ...]:
        """Return predicates of broker names, the most important first."""
        return (lambda name: self.is_available(name, now_ms), self.is_reachable)

    def take_probes(self, now_ms: int, interval_ms: int) -> list[str]:
        """Return the unreachable brokers to probe now, sorted; each at most once per interval."""
        due = [
            (name, broker)
            for name, broker in self._brokers.items()
            if not broker.is_reachable and now_ms >= broker.probe_at_ms
        ]
        for _, broker in due:
            broker.probe_at_ms = now_ms + interval_ms
        return sorted(name for name, _ in due)

    def on_probed(self, broker_name: str) -> None:
        """Record that a broker answered a probe."""
        broker = self._brokers.get(broker_name)
        if broker is not None:
            broker.is_reachable = True

    def retain(self, broker_names: Collection[str]) -> None:
        """Remove all other brokers."""
        for name in self._brokers.keys() - set(broker_names):
            del self._brokers[name]

    def _update(
        self, broker_name: str, latency_ms: float, now_ms: int, *, is_reachable: bool
    ) -> None:
        broker = self._brokers.setdefault(broker_name, _Broker())
        unavailable_ms = _UNAVAILABLE_MS[bisect_right(_LATENCIES_MS, latency_ms)]
        if unavailable_ms:
            broker.available_at_ms = max(broker.available_at_ms, now_ms + unavailable_ms)
        broker.is_reachable = is_reachable


class BrokerLatencies:
    """Measures the brokers of one producer by its tries and, if configured, by probes.

    Args:
        instance: the producer's client.
        config: its settings.
    """

    def __init__(self, instance: ClientInstance, config: ProducerConfig) -> None:
        self._instance = instance
        self._config = config
        self._faults = LatencyFaults()

    def start(self) -> None:
        """Start to probe brokers, and to remove those that left the routes."""
        self._instance.tasks.start_periodic(
            self._detect, _DETECTOR_PERIOD_MS, "detector of slow brokers"
        )

    def preferences(self) -> tuple[Callable[[str], bool], ...]:
        """Return predicates of broker names, the most important first."""
        return self._faults.preferences(self._now_ms())

    def record(self, broker_name: str, elapsed_ms: float, error: BaseException | None) -> None:
        """Record the outcome of a try."""
        now_ms = self._now_ms()
        if isinstance(error, RemoteError):
            self._faults.on_failed(broker_name, now_ms, is_reachable=False)
        elif isinstance(error, TransportError):
            is_reachable = not self._config.latency_detector
            self._faults.on_failed(broker_name, now_ms, is_reachable=is_reachable)
        else:
            self._faults.on_answered(broker_name, elapsed_ms, now_ms)

    async def _detect(self) -> None:
        """Remove brokers that left the routes, and probe unreachable ones."""
        masters = self._instance.routes.masters()
        self._faults.retain(masters.keys())
        if not self._config.latency_detector:
            return
        timeout_s = self._config.detect_timeout_ms / 1000
        for name in self._faults.take_probes(self._now_ms(), self._config.detect_interval_ms):
            topic, address = masters[name]
            try:
                await max_offset(
                    self._instance.pool, address, MessageQueue(topic, name, 0), timeout_s=timeout_s
                )
            except (RemoteError, TransportError):
                continue
            self._faults.on_probed(name)

    def _now_ms(self) -> int:
        return self._instance.runtime.clock.now_ms()
