"""Order infos are durable before an answer leaves, and agree with Java's file after each start."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pytest

from kourou.broker.popping.order_info import OrderAck, OrderedPop, OrderedQueue
from kourou.broker.popping.order_journal import FILE_NAME as JOURNAL
from kourou.broker.popping.order_journal import OrderJournal
from kourou.broker.popping.order_table import FILE_NAME, OrderInfoTable
from kourou.errors import CorruptRecordError
from kourou.protocol.popping.order_file import OrderInfo, decode_order_info_table
from kourou.store.state.config_file import ConfigFile, unseal
from kourou.testing.clock import ManualClock
from kourou.testing.disk import SimDisk
from kourou.testing.runtime import call_directly

P = ParamSpec("P")
T = TypeVar("T")

Q = OrderedQueue("T", "g", 0)
GOLDEN = Path(__file__).parents[2] / "golden" / "config" / "consumerOrderInfo.json"
NOW_MS = 1_700_000_000_000


class Offsets:
    """Committed offsets in memory."""

    def __init__(self, offsets: dict[OrderedQueue, int]) -> None:
        self.offsets = offsets

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        return self.offsets.get(OrderedQueue(topic, group, queue_id))

    def commit(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        self.offsets[OrderedQueue(topic, group, queue_id)] = queue_offset


def open_table(disk: SimDisk) -> OrderInfoTable:
    file = ConfigFile(disk, FILE_NAME, decode_order_info_table)
    return OrderInfoTable(file, OrderJournal(disk), call_directly, ManualClock(NOW_MS))


def content(table: OrderInfoTable) -> dict[OrderedQueue, OrderInfo]:
    return dict(table.infos.items())


def write(disk: SimDisk, name: str, data: bytes) -> None:
    """Replace a file as another program does."""
    disk.make_directory("config")
    disk.truncate(name, 0)
    disk.write(name, 0, [data])
    disk.sync(name)
    disk.sync_directory("config")


def pop(table: OrderInfoTable, queue: OrderedQueue, *offsets: int, at_ms: int = NOW_MS) -> None:
    table.infos.add_pop(queue, OrderedPop(offsets, at_ms, 60_000), at_ms)


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def test_saved_change_survives_a_power_cut() -> None:
    disk = SimDisk()

    async def main() -> None:
        table = open_table(disk)
        pop(table, Q, 5, 6)
        await table.save()
        table.infos.ack(Q, 5, NOW_MS, 5, NOW_MS)
        await table.save()
        disk.crash()
        assert content(open_table(disk)) == content(table)

    run(main())


def test_changes_of_one_turn_share_a_write_and_a_sync() -> None:
    disk = SimDisk()
    calls: list[str] = []

    async def main() -> None:
        table = open_table(disk)
        pop(table, Q, 5)
        await table.save()
        disk.on_operation = lambda operation, _: calls.append(operation)

        async def pop_and_save(queue_id: int) -> None:
            pop(table, OrderedQueue("T", "g", queue_id), 1)
            await table.save()

        await asyncio.gather(*map(pop_and_save, range(100)))

    run(main())
    assert calls == ["write", "sync"]


def test_changes_during_a_write_are_in_the_next_one() -> None:
    disk = SimDisk()

    async def main() -> None:
        started, may_go_on = asyncio.Event(), asyncio.Event()

        async def offload(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
            result = function(*args, **kwargs)
            if function.__name__ == "append":
                started.set()
                await may_go_on.wait()
            return result

        file = ConfigFile(disk, FILE_NAME, decode_order_info_table)
        table = OrderInfoTable(file, OrderJournal(disk), offload, ManualClock(NOW_MS))
        pop(table, Q, 5)
        await table.save()
        pop(table, Q, 6)
        first = asyncio.create_task(table.save())
        await started.wait()
        pop(table, Q, 7)
        second = asyncio.create_task(table.save())
        third = asyncio.create_task(table.save())
        await asyncio.sleep(0)
        assert not first.done()
        third.cancel()
        may_go_on.set()
        await asyncio.gather(first, second)
        disk.crash()
        assert content(open_table(disk)) == content(table)

    run(main())


def test_save_without_a_change_writes_nothing() -> None:
    disk = SimDisk()

    async def main() -> None:
        table = open_table(disk)
        await table.save()
        assert await table.persist()
        assert not disk.exists(FILE_NAME)
        assert not disk.exists(JOURNAL)

    run(main())


def test_failed_write_is_an_error_and_the_next_one_contains_all() -> None:
    disk = SimDisk()

    async def main() -> None:
        table = open_table(disk)
        pop(table, Q, 5, 6)
        await table.save()
        for operation in ("write", "sync"):
            disk.fail_after(0, OSError("the disk is full"), [operation])
            table.infos.ack(Q, 5, NOW_MS, 5, NOW_MS)
            with pytest.raises(OSError, match="full"):
                await table.save()
        await table.save()  # as for an ack that is repeated, and changes nothing
        disk.crash()
        assert content(open_table(disk)) == content(table)

    run(main())


def test_callers_that_wait_for_a_failed_write_all_get_the_error() -> None:
    disk = SimDisk()

    async def main() -> None:
        table = open_table(disk)
        pop(table, Q, 5)
        await table.save()
        disk.fail_after(0, OSError("the disk is full"), ["sync"])
        pop(table, Q, 6)
        results = await asyncio.gather(table.save(), table.save(), return_exceptions=True)
        assert [type(result) for result in results] == [OSError, OSError]

    run(main())


def test_file_of_java_is_loaded_and_saved_in_its_form() -> None:
    disk = SimDisk()
    write(disk, FILE_NAME, GOLDEN.read_bytes())

    async def main() -> None:
        table = open_table(disk)
        queue = OrderedQueue("StorePopOrder", "store_pop_order", 0)
        info = table.infos.find(queue)
        assert info is not None
        assert table.infos.ack(queue, 1, info.pop_time, 1, NOW_MS) == OrderAck(2)
        await table.save()
        assert await table.persist()

    run(main())
    text = unseal(disk.read(FILE_NAME, 0, disk.size(FILE_NAME))).data
    assert text == GOLDEN.read_bytes().replace(b'"cm":1', b'"cm":3')


def test_file_has_the_infos_of_several_groups_in_order() -> None:
    disk = SimDisk()

    async def main() -> None:
        table = open_table(disk)
        for queue in (OrderedQueue("U", "a", 0), OrderedQueue("T", "h", 3), Q):
            pop(table, queue, 1, 2)
        table.infos.clear(Q, NOW_MS)
        assert await table.persist()

    run(main())
    table = decode_order_info_table(disk.read(FILE_NAME, 0, disk.size(FILE_NAME)))
    assert [*table.table] == ["T@h", "U@a"]
    assert table.order_info_count == 2


def test_journal_is_out_of_date_once_java_wrote_the_file() -> None:
    disk = SimDisk()

    async def main() -> None:
        table = open_table(disk)
        pop(table, Q, 5)
        assert await table.persist()
        write(disk, FILE_NAME, GOLDEN.read_bytes())
        again = open_table(disk)
        assert [queue.topic for queue in content(again)] == ["StorePopOrder"]
        assert not disk.exists(JOURNAL)
        # A kill before the file is saved the next time must not make a later journal count less.
        pop(again, Q, 9)
        await again.save()
        disk.crash()
        assert content(open_table(disk)) == content(again)

    run(main())


def test_journal_is_out_of_date_if_java_wrote_the_same_text() -> None:
    disk = SimDisk()

    async def main() -> None:
        table = open_table(disk)
        pop(table, Q, 5)
        assert await table.persist()
        text = unseal(disk.read(FILE_NAME, 0, disk.size(FILE_NAME))).data
        pop(table, Q, 6)
        await table.save()
        write(disk, FILE_NAME, text)
        again = open_table(disk)
        assert again.infos.find(Q) == decode_order_info_table(text).table["T@g"][0]
        again.infos.clear(OrderedQueue("V", "g", 0), NOW_MS)  # changes nothing in the file
        await again.save()
        assert disk.read(FILE_NAME, 0, disk.size(FILE_NAME)) != text
        assert content(open_table(disk)) == content(again)

    run(main())


def test_removed_file_forgets_the_infos() -> None:
    disk = SimDisk()

    async def main() -> None:
        table = open_table(disk)
        pop(table, Q, 5)
        assert await table.persist()
        disk.unlink(FILE_NAME)
        disk.unlink(f"{FILE_NAME}.bak")
        assert content(open_table(disk)) == {}

    run(main())


def test_damaged_file_is_refused() -> None:
    disk = SimDisk()
    write(disk, FILE_NAME, b'{"table":{"T@g":7}}')
    with pytest.raises(CorruptRecordError, match="consumerOrderInfo"):
        open_table(disk)


def test_keys_that_are_not_a_topic_and_a_group_are_dropped() -> None:
    disk = SimDisk()
    write(disk, FILE_NAME, b'{"table":{"T":{0:{}},"T@g@h":{0:{}},"T@":{0:{}},"T@g":{0:{}}}}')
    assert [*content(open_table(disk))] == [Q]


def test_damaged_line_of_the_journal_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk()

    async def main() -> None:
        table = open_table(disk)
        pop(table, Q, 5)
        pop(table, OrderedQueue("T", "g", 1), 5)
        await table.save()
        size = disk.size(JOURNAL)
        pop(table, Q, 6)
        await table.save()
        pop(table, OrderedQueue("T", "g", 1), 6)
        await table.save()
        disk.write(JOURNAL, size + 12, [b"?"])
        again = open_table(disk)
        assert [info.offsets for info in content(again).values()] == [(5,), (6,)]
        assert "lines=1" in caplog.text

    run(main())


def test_journal_is_replaced_when_it_has_grown() -> None:
    disk = SimDisk()

    async def main() -> None:
        table = open_table(disk)
        sizes = []
        for number in range(14_000):
            pop(table, Q, number, at_ms=NOW_MS + number)
            await table.save()
            sizes.append(disk.size(JOURNAL))
        assert max(sizes) < 1_100_000
        assert sizes[-1] < max(sizes)
        assert content(open_table(disk)) == content(table)

    run(main())


def acknowledged(disk: SimDisk) -> OrderInfoTable:
    """Return a table with pops of offsets 5 to 8, all acknowledged but the last."""
    table = open_table(disk)

    async def main() -> None:
        pop(table, Q, 5, 6, 7, 8)
        for offset in (5, 6, 7):
            table.infos.ack(Q, offset, NOW_MS, offset, NOW_MS)
        await table.save()

    run(main())
    return table


def test_offsets_that_a_kill_lost_are_restored_from_the_acks() -> None:
    disk = SimDisk()
    acknowledged(disk)
    offsets = Offsets({Q: 2})
    open_table(disk).recover(offsets, lambda _, __: 100)
    assert offsets.offsets == {Q: 8}


def test_first_offset_of_a_group_is_restored() -> None:
    disk = SimDisk()
    acknowledged(disk)
    offsets = Offsets({})
    open_table(disk).recover(offsets, lambda _, __: 100)
    assert offsets.offsets == {Q: 8}


@pytest.mark.parametrize(("committed", "end"), [({Q: 9}, 100), ({}, 0)])
def test_offsets_are_neither_set_back_nor_made_for_missing_topics(
    committed: dict[OrderedQueue, int], end: int
) -> None:
    disk = SimDisk()
    acknowledged(disk)
    offsets = Offsets(dict(committed))
    open_table(disk).recover(offsets, lambda _, __: end)
    assert offsets.offsets == committed


def test_saved_offsets_count_even_if_they_were_set_back() -> None:
    disk = SimDisk()

    async def main() -> None:
        table = acknowledged_in_loop(disk)
        await table.save()
        await table.note_offsets_saved()
        # A journal that is replaced has the infos, but still implies no offset.
        disk.fail_after(0, OSError("the disk is full"), ["sync"])
        pop(table, OrderedQueue("T", "g", 1), 3)
        with pytest.raises(OSError, match="full"):
            await table.save()
        await table.save()
        offsets = Offsets({Q: 0, OrderedQueue("T", "g", 1): 1})
        open_table(disk).recover(offsets, lambda _, __: 100)
        assert offsets.offsets == {Q: 0, OrderedQueue("T", "g", 1): 3}

    run(main())


def acknowledged_in_loop(disk: SimDisk) -> OrderInfoTable:
    table = open_table(disk)
    pop(table, Q, 5, 6)
    table.infos.ack(Q, 5, NOW_MS, 5, NOW_MS)
    return table


def test_infos_of_lost_messages_are_cleared_at_a_start() -> None:
    disk = SimDisk()
    acknowledged(disk)
    offsets = Offsets({Q: 2})
    table = open_table(disk)
    table.recover(offsets, lambda _, __: 7)
    assert offsets.offsets == {Q: 7}  # the end of the queue
    assert table.infos.ack(Q, 7, NOW_MS, 7, NOW_MS) == OrderAck()


def test_unused_infos_are_removed_from_the_files() -> None:
    disk = SimDisk()

    async def main() -> None:
        table = open_table(disk)
        pop(table, Q, 5)
        await table.save()
        table.expire(lambda _: None, lambda _: True)
        assert await table.persist()
        assert content(open_table(disk)) == {}
        assert open_table(disk).infos.cleared() == {Q: NOW_MS}

    run(main())


class PowerCut(Exception):  # noqa: N818
    """The power fails."""


@pytest.mark.parametrize("seed", range(3))
def test_power_cut_at_any_operation_loses_nothing_that_was_answered(seed: int) -> None:
    # Each step changes one queue. After the cut, each queue has the state of its last answered
    # step, or of a later one.
    operations = None
    at = 0
    while operations is None or at < operations:
        disk = SimDisk(seed)
        states: dict[OrderedQueue, list[OrderInfo | None]] = {}
        answered: dict[OrderedQueue, int] = {}
        try:
            asyncio.run(_steps(disk, at, random.Random(seed), states, answered))
            operations = at
        except PowerCut:
            at += 1
        disk.on_operation = None
        disk.crash()
        table = open_table(disk)
        for queue, each in states.items():
            index = answered.get(queue, -1)
            possible = each[max(index, 0) :] if index >= 0 else [None, *each]
            assert table.infos.find(queue) in possible


async def _steps(
    disk: SimDisk,
    cut_at: int,
    rng: random.Random,
    states: dict[OrderedQueue, list[OrderInfo | None]],
    answered: dict[OrderedQueue, int],
) -> None:
    def cut(_: str, __: str) -> None:
        if disk.operations > cut_at:
            raise PowerCut

    disk.on_operation = cut
    table = open_table(disk)
    for number in range(25):
        queue = OrderedQueue("T", "g", rng.randrange(3))
        info = table.infos.find(queue)
        if info is not None and rng.random() < 0.5:
            table.infos.ack(queue, info.offsets[0], info.pop_time, 0, NOW_MS)
        elif info is not None and rng.random() < 0.3:
            table.infos.clear(queue, NOW_MS)
        else:
            pop(table, queue, number, number + 1, at_ms=NOW_MS + number)
        states.setdefault(queue, []).append(table.infos.find(queue))
        await table.save()
        answered[queue] = len(states[queue]) - 1
        if rng.random() < 0.2:
            await table.persist()
        if rng.random() < 0.1:
            await table.note_offsets_saved()
        if rng.random() < 0.1:
            table = open_table(disk)
