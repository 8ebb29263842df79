"""Broker sets and heartbeats for tests."""

from __future__ import annotations

from kourou.controller.broker_set import BrokerSet, Replica
from kourou.controller.heartbeats import Heartbeat
from kourou.protocol.topic_table import BrokerHeartbeatRequestHeader

CLUSTER = "C"
NAME = "a"


def broker_set(
    *ids: int,
    master: int | None = 1,
    epoch: int = 1,
    in_sync: tuple[int, ...] = (1,),
    in_sync_epoch: int = 1,
) -> BrokerSet:
    """Return a set with the replicas `ids`."""
    replicas = tuple(Replica(id_, f"h:{id_}", f"h:{id_};0") for id_ in ids)
    next_id = max(ids, default=0) + 1
    return BrokerSet(CLUSTER, NAME, replicas, next_id, master, epoch, in_sync, in_sync_epoch)


def beat(epoch: int = 1, max_offset: int = 0, priority: int = 9) -> Heartbeat:
    """Return a heartbeat of a replica that is alive."""
    return Heartbeat(0, 1000, epoch, max_offset, priority)


def heartbeat_header(
    broker_id: int | None = 1,
    *,
    epoch: int | None = 1,
    max_offset: int = 0,
    timeout_ms: int | None = 3000,
    cluster: str = CLUSTER,
    name: str = NAME,
    role: tuple[int | None, int | None] = (None, None),
) -> BrokerHeartbeatRequestHeader:
    """Return the header of a heartbeat (904); `role`: epoch and master of the broker's role."""
    return BrokerHeartbeatRequestHeader(
        cluster, f"h:{broker_id}", name, broker_id, epoch, max_offset, 0, timeout_ms, 9, *role
    )
