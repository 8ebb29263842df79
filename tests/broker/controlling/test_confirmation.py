"""Heartbeats of a replica go on while it changes its role, and no longer."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from kourou.broker.controlling.confirmation import Confirmation
from kourou.broker.controlling.controller_mode_config import ControllerModeConfig
from kourou.broker.controlling.controllers import Controllers, Identity
from kourou.broker.replication.controlled_role import ControlledRole, InSyncSet, LogState
from kourou.protocol.topic_table import (
    BrokerHeartbeatRequestHeader,
    BrokerHeartbeatResponseHeader,
)
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.network import MemoryNetwork
from kourou.testing.runtime import sim_runtime

ME = Identity("c", "b", 2)
STATE = LogState(7, 900, 800)
IN_SYNC = InSyncSet(frozenset({1, 2}), 3)


class Answering:
    """Controllers that answer each heartbeat."""

    def __init__(self) -> None:
        self.ends: list[int | None] = []
        self.roles: list[tuple[int | None, int | None]] = []

    async def heartbeat(self, header: BrokerHeartbeatRequestHeader) -> Any:
        self.ends.append(header.max_offset)
        self.roles.append((header.kourou_role_epoch, header.kourou_role_master))
        return BrokerHeartbeatResponseHeader(2, "h:2", 7, 1)


class Stopped:
    fence_reason = ""
    role_epoch = 7

    def fence(self, reason: str) -> None:
        self.fence_reason = reason

    def log_state(self) -> LogState:
        return STATE


def create(controllers: Answering) -> Confirmation:
    disk, runtime = SimDisk(1), sim_runtime(1, MemoryNetwork(1))
    config = ControllerModeConfig(controller_heartbeat_timeout_ms=3_000)
    asked = cast("Controllers", controllers)
    return Confirmation(config, asked, "h:2", disk, runtime.offload, lambda: None)


async def beats(after_s: float, *, keeps_log: bool) -> list[int | None]:
    controllers = Answering()
    confirmation = create(controllers)
    confirmation.begin(cast("Any", Stopped()), None)
    confirmation.end(keeps_log=keeps_log)
    await asyncio.sleep(after_s)
    await confirmation.beat(ME)
    return controllers.ends


def test_heartbeats_go_on_during_a_change_of_the_role() -> None:
    assert run_virtual(beats(8, keeps_log=True)) == [900]


def test_replica_that_does_not_start_again_sends_no_heartbeats() -> None:
    assert run_virtual(beats(10, keeps_log=True)) == []


def test_replica_whose_log_is_truncated_reports_no_older_end() -> None:
    assert run_virtual(beats(1, keeps_log=False)) == []


@pytest.mark.parametrize(
    ("role_epoch", "reported"),
    [(None, (7, None)), (6, (7, None)), (7, (7, 1)), (8, (8, 1))],
    ids=["restarted", "role of an older state", "same role", "next role"],
)
def test_heartbeats_name_the_newest_epoch_of_a_role_also_before_the_last_start(
    role_epoch: int | None, reported: tuple[int, int | None]
) -> None:
    async def main() -> None:
        controllers = Answering()
        confirmation = create(controllers)
        role = None if role_epoch is None else ControlledRole(2, 1, role_epoch, "", IN_SYNC)
        confirmation.begin(cast("Any", Stopped()), role)
        await confirmation.beat(ME)
        assert controllers.roles == [reported]

    run_virtual(main())


def test_lease_of_a_new_master_begins_with_its_last_answered_heartbeat() -> None:
    async def main() -> None:
        controllers, broker = Answering(), Stopped()
        confirmation = create(controllers)
        confirmation.begin(cast("Any", broker), ControlledRole(2, 1, 7, "", IN_SYNC))
        await confirmation.beat(ME)
        await asyncio.sleep(1.5)
        confirmation.end(keeps_log=True)
        confirmation.begin(cast("Any", broker), ControlledRole(2, 2, 8, "", IN_SYNC))
        confirmation.confirm_elected()
        assert not broker.fence_reason
        await asyncio.sleep(0.6)
        assert broker.fence_reason

    run_virtual(main())
