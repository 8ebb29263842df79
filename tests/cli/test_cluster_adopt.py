"""Tests of `kourou cluster adopt`: the store of a single broker becomes that of a set."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kourou.broker.controlling.controller_mode_config import ControllerModeConfig
from kourou.broker.controlling.controllers import Identity
from kourou.broker.controlling.identity import save_identity
from kourou.broker.server import Broker
from kourou.disk import OsDisk
from kourou.model.message import Message
from kourou.store.config import StoreConfig
from kourou.store.message_store import MessageStore
from kourou.store.state.epoch_file import read_epochs
from kourou.store.tools.adopt import adopt_log, plan_adoption
from kourou.testing.flusher import SimFlusher
from kourou.testing.loop import run_virtual
from kourou.testing.process import Outcome
from tests.broker.controlling.controlled_cluster import TOPIC, ControlledCluster
from tests.replica_stores import log_of
from tests.store.rig import draft

CONFIG = StoreConfig(commitlog_segment_bytes=8192, consumequeue_file_bytes=400, free_bytes_min=1)
NOW_MS = 1_700_000_000_000
Command = Callable[..., Outcome]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a closed store whose first segment has expired."""
    opened = MessageStore.open(OsDisk(tmp_path), CONFIG, NOW_MS, pid=1)
    for number in range(60):
        opened.writer.append(draft(b"body %d" % number * 20), NOW_MS + number)
    opened.writer.write()
    opened.writer.dispatch(opened.writer.appended_position)
    opened.close(NOW_MS)
    (tmp_path / "commitlog" / f"{0:020}").unlink()
    return tmp_path


def epochs_of(store: Path) -> list[tuple[int, int]]:
    disk = OsDisk(store)
    try:
        return [(entry.epoch, entry.start) for entry in read_epochs(disk)]
    finally:
        disk.close()


def test_whole_log_gets_an_epoch_from_its_first_byte_on(command: Command, store: Path) -> None:
    before = log_of(store)
    planned = command("cluster", "adopt", str(store), "--dry-run", "--json")
    unchanged = epochs_of(store)
    adopted = command("cluster", "adopt", str(store))

    row = json.loads(planned.out)
    assert (row["first"], row["epoch"], row["adopted"]) == (8192, 0, False)
    assert 8192 < row["end"] < 8192 * 3
    assert unchanged == []
    assert adopted.code == 0
    assert f"the log, from 8,192 to {row['end']:,}, is that of epoch 0" in adopted.out
    assert epochs_of(store) == [(0, 8192)]
    assert (store / "epochFileCheckpoint.bak").exists()
    assert log_of(store) == before


def test_store_of_a_replica_is_refused(command: Command, store: Path) -> None:
    assert command("cluster", "adopt", str(store)).code == 0
    again = command("cluster", "adopt", str(store))
    disk = OsDisk(store)
    save_identity(disk, Identity("C", "a", 2))
    disk.close()
    registered = command("cluster", "adopt", str(store))

    assert (again.code, registered.code) == (2, 2)
    assert "the log has epochs, EpochList([(0, 8192)])" in again.err
    assert "is the store of replica 2 of a (brokerIdentity): start it as it is" in registered.err


def test_store_that_is_empty_or_was_not_closed_is_refused(command: Command, tmp_path: Path) -> None:
    opened = MessageStore.open(OsDisk(tmp_path), CONFIG, NOW_MS, pid=1)
    in_use = command("cluster", "adopt", str(tmp_path))
    opened.writer.append(draft(b"body"), NOW_MS)
    opened.writer.write()
    opened.abandon()
    killed = command("cluster", "adopt", str(tmp_path))
    empty = tmp_path / "empty"
    empty.mkdir()
    MessageStore.open(OsDisk(empty), CONFIG, NOW_MS, pid=1).close(NOW_MS)
    nothing = command("cluster", "adopt", str(empty))

    assert (in_use.code, killed.code, nothing.code) == (3, 2, 2)
    assert "was not closed cleanly" in killed.err
    assert "the log is empty: a replica can start on it as it is" in nothing.err


def test_new_replicas_copy_what_the_adopted_broker_had_alone() -> None:
    async def main() -> None:
        async with ControlledCluster(2) as cluster:
            config = replace(cluster.config(0), controller=ControllerModeConfig())
            alone = Broker(
                config, cluster.disks[0], cluster.runtime, lambda loop: SimFlusher(loop, 1)
            )
            await alone.start()
            await cluster.create_topic()
            async with cluster.producer() as producer:
                for number in range(20):
                    await producer.send(Message(TOPIC, b"alone %d" % number))
            await alone.stop()
            plan = plan_adoption(cluster.disks[0])
            adopt_log(cluster.disks[0], plan)
            first = await cluster.start(0)
            await cluster.until(lambda: cluster.master() == 0)
            await cluster.start(1)
            await cluster.until(lambda: len(cluster.in_sync()) == 2)
            replica = first.components.replica
            assert replica is not None
            assert [tuple(entry) for entry in replica.epochs.epochs] == [(0, 0), (1, plan.end)]
        logs = [disk.read("commitlog/" + "0" * 20, 0, plan.end) for disk in cluster.disks]
        assert logs[0] == logs[1]
        assert logs[0].count(b"alone ") == 20

    run_virtual(main())
