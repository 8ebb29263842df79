"""Heartbeats of replicas: which are alive, and how far each has its log.

Heartbeats are kept in memory only. A replica is alive until its own timeout has passed since its
last heartbeat; a closed connection changes nothing, because the replica may reconnect, and its
lease continues meanwhile.

The *latest* heartbeat of a replica ranks it in elections, not the largest one (as in Java): a
replica that returns with a shorter log must not be elected for what it once had.

Source: DefaultBrokerHeartbeatManager.java, DefaultElectPolicy.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from kourou.protocol.topic_table import BrokerHeartbeatRequestHeader

PRIORITY_DEFAULT: Final = 0x7FFF_FFFF


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The last heartbeat of a replica.

    Attributes:
        at_ms: when it was received, by the controller's clock.
        timeout_ms: the replica is alive for this long after `at_ms`.
        epoch: the last epoch in its log; -1 if it has not reported one.
        max_offset: the end of its log; -1 if it has not reported one.
        priority: of two replicas with equal logs, that with the smaller number is elected.
    """

    at_ms: int
    timeout_ms: int
    epoch: int = -1
    max_offset: int = -1
    priority: int = PRIORITY_DEFAULT

    @property
    def ends_at_ms(self) -> int:
        """The time at which the replica counts as dead; its lease has ended before."""
        return self.at_ms + self.timeout_ms


def elect(candidates: Iterable[int], alive: Mapping[int, Heartbeat]) -> int | None:
    """Return the candidate with the newest epoch, then the longest log, then the best priority.

    None if no candidate is alive. Of equal candidates, that with the smallest id.
    """
    ranks = [
        (
            -alive[broker_id].epoch,
            -alive[broker_id].max_offset,
            alive[broker_id].priority,
            broker_id,
        )
        for broker_id in candidates
        if broker_id in alive
    ]
    return min(ranks)[-1] if ranks else None


class Heartbeats:
    """The last heartbeats of all replicas, since the controller became the leading one.

    Args:
        timeout_default_ms: timeout of a replica that does not name its own.
    """

    def __init__(self, timeout_default_ms: int) -> None:
        self._timeout_default_ms = timeout_default_ms
        self._sets: dict[str, dict[int, Heartbeat]] = {}

    def receive(self, broker_id: int, header: BrokerHeartbeatRequestHeader, now_ms: int) -> None:
        """Remember a heartbeat; it replaces the replica's earlier one."""
        timeout_ms = header.heartbeat_timeout_mills
        self._sets.setdefault(header.broker_name, {})[broker_id] = Heartbeat(
            now_ms,
            self._timeout_default_ms if timeout_ms is None else timeout_ms,
            -1 if header.epoch is None else header.epoch,
            -1 if header.max_offset is None else header.max_offset,
            PRIORITY_DEFAULT if header.election_priority is None else header.election_priority,
        )

    def last(self, broker_name: str, broker_id: int) -> Heartbeat | None:
        """Return the replica's last heartbeat, also if it is no longer alive."""
        return self._sets.get(broker_name, {}).get(broker_id)

    def all_last(self, broker_name: str) -> Mapping[int, Heartbeat]:
        """Return the last heartbeats of all replicas of a set, by id."""
        return self._sets.get(broker_name, {})

    def presume(self, broker_name: str, broker_id: int, now_ms: int) -> None:
        """Count a replica that sends no heartbeats as alive for the default timeout."""
        beats = self._sets.setdefault(broker_name, {})
        beats.setdefault(broker_id, Heartbeat(now_ms, self._timeout_default_ms))

    def alive(self, broker_name: str, now_ms: int) -> dict[int, Heartbeat]:
        """Return the last heartbeats of the replicas of a set that are alive, by id."""
        beats = self._sets.get(broker_name, {})
        return {id_: beat for id_, beat in beats.items() if beat.ends_at_ms >= now_ms}

    def keep_only(self, broker_name: str, broker_ids: Iterable[int]) -> None:
        """Forget the replicas of a set that are no longer registered."""
        kept = set(broker_ids)
        beats = self._sets.get(broker_name, {})
        beats = {broker_id: beat for broker_id, beat in beats.items() if broker_id in kept}
        if beats:
            self._sets[broker_name] = beats
        else:
            self._sets.pop(broker_name, None)

    def postpone(self, by_ms: int) -> None:
        """Let all replicas live longer, after a time in which this process did not run.

        Their heartbeats of that time were not received, or wait in the sockets.
        """
        for beats in self._sets.values():
            for broker_id, beat in beats.items():
                beats[broker_id] = replace(beat, at_ms=beat.at_ms + by_ms)
