"""A broker that starts again knows who has which queue for itself."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.broker.consuming.queue_locks import EXPIRY_MS
from kourou.broker.consuming.saved_locks import FILE_NAME, SavedLocks, parse_locks
from kourou.model.queue import MessageQueue
from kourou.store.state.config_file import ConfigFile
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.runtime import sim_runtime

A, B = (MessageQueue("T", "broker-a", number) for number in range(2))


def opened(disk: SimDisk, now_ms: int = 0) -> SavedLocks:
    file = ConfigFile(disk, FILE_NAME, parse_locks, restores=True)
    return SavedLocks(file, sim_runtime(0).offload, now_ms)


def test_locks_are_as_they_were_and_asked_for_when_the_broker_started() -> None:
    async def main() -> None:
        disk = SimDisk()
        saved = opened(disk)
        saved.locks.lock("g", "c1", [A], 0)
        saved.locks.lock("g", "c2", [B], 0)
        saved.locks.lock("h", "c2", [A], 0)
        saved.locks.unlock("h", "c2", [A])
        await saved.persist()
        disk.crash()

        locks = opened(disk, 1_000_000).locks
        assert locks.lock("g", "c2", [A, B], 1_000_000 + EXPIRY_MS) == [B]
        assert locks.holder("g", A, 1_000_000 + EXPIRY_MS) == "c1"
        assert locks.lock("g", "c2", [A], 1_000_001 + EXPIRY_MS) == [A]
        assert locks.lock("h", "c1", [A], 1_000_000) == [A]

    run_virtual(main())


def test_only_moves_are_written() -> None:
    async def main() -> None:
        disk = SimDisk()
        saved = opened(disk)
        await saved.persist()
        assert not disk.exists(FILE_NAME)
        saved.locks.lock("g", "c1", [A], 0)
        await saved.persist()
        disk.unlink(FILE_NAME)
        saved.locks.lock("g", "c1", [A], 20_000)  # its own again
        await saved.persist()
        assert not disk.exists(FILE_NAME)
        saved.locks.expire(20_001 + EXPIRY_MS)
        await saved.persist()
        assert disk.exists(FILE_NAME)

    run_virtual(main())


def test_a_file_that_cannot_be_read_costs_the_locks_and_not_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        disk = SimDisk()
        saved = opened(disk)
        saved.locks.lock("g", "c1", [A], 0)
        await saved.persist()
        for name in (FILE_NAME, f"{FILE_NAME}.bak"):
            ConfigFile(disk, name).save(b'{"locks":3}')
        again = opened(disk)
        assert again.locks.lock("g", "c2", [A], 0) == [A]
        await again.persist()
        assert opened(disk).locks.holder("g", A, 0) == "c2"

    with caplog.at_level(logging.WARNING):
        run_virtual(main())
    assert "queue_locks.forgotten" in caplog.text


@given(
    asked=st.lists(
        st.tuples(st.text(max_size=5), st.text(max_size=5), st.text(max_size=5)), max_size=9
    )
)
def test_whatever_names_clients_give_is_read_again(asked: list[tuple[str, str, str]]) -> None:
    async def main() -> None:
        disk = SimDisk()
        saved = opened(disk)
        for group, client_id, topic in asked:
            saved.locks.lock(group, client_id, [MessageQueue(topic, "broker-a", 0)], 0)
        await saved.persist()
        again = opened(disk)
        assert again.locks.groups() == saved.locks.groups()
        for group in again.locks.groups():
            assert sorted(again.locks.holders(group)) == sorted(saved.locks.holders(group))

    run_virtual(main())
