"""Which brokers to spare for a while, from how long they took and how they failed.

After each try the broker is not available for a time that grows with its latency:

    latency in ms, at least    50   100   550   1,800   3,000   5,000   15,000
    not available, ms           0     0 2,000   5,000   6,000  10,000   30,000

A failure counts as 10,000 ms. A broker that refused is moreover unreachable until a later send
succeeds there, or a probe does. Producers prefer available brokers, then reachable ones.

Source: MQFaultStrategy.java, LatencyFaultToleranceImpl.java; in the latter "available" looks at the
time alone, so that an unreachable broker gets a chance when its time is over.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

_LATENCIES_MS: Final = (50, 100, 550, 1_800, 3_000, 5_000, 15_000)
_SPARED_MS: Final = (0, 0, 0, 2_000, 5_000, 6_000, 10_000, 30_000)
"""For a latency below the first of `_LATENCIES_MS`, from that on, and so on."""

_FAILURE_LATENCY_MS: Final = 10_000


@dataclass(slots=True)
class _Broker:
    available_at_ms: int = 0
    is_reachable: bool = True
    probe_at_ms: int = 0


class LatencyFaults:
    """What one producer has seen of its brokers. Times are epoch ms, given by the caller."""

    def __init__(self) -> None:
        self._brokers: dict[str, _Broker] = {}

    def on_answered(self, broker_name: str, latency_ms: float, now_ms: int) -> None:
        """Note a try that stored the message, or that we ended ourselves."""
        self._update(broker_name, latency_ms, now_ms, is_reachable=True)

    def on_failed(self, broker_name: str, now_ms: int, *, is_reachable: bool) -> None:
        """Note a try that failed.

        Args:
            broker_name: where.
            now_ms: when.
            is_reachable: False until a later success; for a broker that refused, and where a probe
                will find out, for one that did not answer.
        """
        self._update(broker_name, _FAILURE_LATENCY_MS, now_ms, is_reachable=is_reachable)

    def is_available(self, broker_name: str, now_ms: int) -> bool:
        """Return whether the time for which the broker is spared is over."""
        broker = self._brokers.get(broker_name)
        return broker is None or now_ms >= broker.available_at_ms

    def is_reachable(self, broker_name: str) -> bool:
        """Return whether the last that was seen of the broker is no refusal."""
        broker = self._brokers.get(broker_name)
        return broker is None or broker.is_reachable

    def preferences(self, now_ms: int) -> tuple[Callable[[str], bool], ...]:
        """Return what a broker's name should satisfy, the most wanted first."""
        return (lambda name: self.is_available(name, now_ms), self.is_reachable)

    def take_probes(self, now_ms: int, interval_ms: int) -> list[str]:
        """Return the unreachable brokers to probe now, each at most once an interval; sorted."""
        due = [
            (name, broker)
            for name, broker in self._brokers.items()
            if not broker.is_reachable and now_ms >= broker.probe_at_ms
        ]
        for _, broker in due:
            broker.probe_at_ms = now_ms + interval_ms
        return sorted(name for name, _ in due)

    def on_probed(self, broker_name: str) -> None:
        """Note that a broker answered a probe."""
        broker = self._brokers.get(broker_name)
        if broker is not None:
            broker.is_reachable = True

    def retain(self, broker_names: Collection[str]) -> None:
        """Forget all other brokers."""
        for name in self._brokers.keys() - set(broker_names):
            del self._brokers[name]

    def _update(
        self, broker_name: str, latency_ms: float, now_ms: int, *, is_reachable: bool
    ) -> None:
        broker = self._brokers.setdefault(broker_name, _Broker())
        spared_ms = _SPARED_MS[bisect_right(_LATENCIES_MS, latency_ms)]
        if spared_ms:
            broker.available_at_ms = max(broker.available_at_ms, now_ms + spared_ms)
        broker.is_reachable = is_reachable
