"""The index follows the synced log, is saved periodically, and handles failed writes."""

from __future__ import annotations

import asyncio
import errno
from typing import Any, cast

import pytest

from kourou.broker.writing import index_follower
from kourou.broker.writing.index_follower import (
    RETRY_MS,
    SAVE_INTERVAL_MS,
    SLICE_MAX_MS,
    SLICE_MS,
    STEP_MS,
    STEP_RECORDS_MAX,
    IndexFollower,
)
from kourou.store.index.index_active import ActiveIndexFile
from kourou.store.index.index_feed import IndexFeed
from kourou.store.index.index_keys import KeyEntries, KeyKind
from kourou.store.index.key_index import KeyQuery
from kourou.store.message_store import IndexStep
from kourou.store.state.checkpoint import load_checkpoint
from kourou.testing.clock import LoopClock
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker

LONG_MAX = 2**63 - 1


def following(broker: SimulatedBroker) -> IndexFollower:
    made = IndexFollower(broker.store, broker.runtime.offload, broker.clock)
    made.start()
    return made


async def send(broker: SimulatedBroker, *keys: str) -> None:
    for key in keys:
        await broker.store_messages([broker.draft(properties={"KEYS": key})])


def test_messages_are_indexed_after_notify() -> None:
    async def test(broker: SimulatedBroker) -> None:
        index = following(broker)
        for _ in range(3):
            await send(broker, "a", "b")
            index.notify()
            await asyncio.sleep(0.1)
            assert broker.store.index_lag_bytes == 0
        await index.stop()

    run_with_broker(test)


def test_without_messages_the_index_is_not_touched() -> None:
    async def test(broker: SimulatedBroker) -> None:
        index = following(broker)
        await send(broker, "a")
        index.notify()
        await asyncio.sleep(2 * SAVE_INTERVAL_MS / 1000)
        operations = broker.disk.operations
        await asyncio.sleep(24 * 3600)
        assert broker.disk.operations == operations
        await index.stop()

    run_with_broker(test)


def test_the_index_is_saved_and_recorded_in_the_checkpoint() -> None:
    async def test(broker: SimulatedBroker) -> None:
        index = following(broker)
        await send(broker, "a")
        index.notify()
        unsaved = []
        for pause_ms in (1_000, SAVE_INTERVAL_MS):
            await asyncio.sleep(pause_ms / 1000)
            assert broker.store.index is not None
            unsaved.append(broker.store.index.has_unsaved)
        assert unsaved == [True, False]
        broker.store.writer.flush(broker.clock.now_ms())
        assert load_checkpoint(broker.disk).index_at_ms > 0
        await index.stop()

    run_with_broker(test)


def test_a_clock_that_is_set_back_delays_no_save() -> None:
    async def test(broker: SimulatedBroker) -> None:
        index = following(broker)
        cast(LoopClock, broker.clock).step(-3_600_000)
        await send(broker, "a")
        index.notify()
        await asyncio.sleep(1 + SAVE_INTERVAL_MS / 1000)
        assert broker.store.index is not None
        assert not broker.store.index.has_unsaved
        await index.stop()

    run_with_broker(test)


def test_indexing_continues_after_a_full_disk_without_affecting_the_store() -> None:
    async def test(broker: SimulatedBroker) -> None:
        full = [True]

        def refuse(operation: str, name: str) -> None:
            if full[0] and name.startswith("index") and operation in ("write", "truncate"):
                raise OSError(errno.ENOSPC, "full")

        index = following(broker)
        await send(broker, "a")
        broker.disk.on_operation = refuse
        index.notify()
        await asyncio.sleep(1)
        await send(broker, "b")
        index.notify()
        assert broker.store.index_lag_bytes > 0
        assert broker.store.writer.read_only_reason is None
        asked = KeyQuery("T", "a", KeyKind.KEY, 9, 0, LONG_MAX)
        assert len(broker.store.find_messages(asked).records) == 1  # from the log itself
        full[0] = False
        await asyncio.sleep(2 * RETRY_MS / 1000)
        assert broker.store.index_lag_bytes == 0
        await index.stop()

    run_with_broker(test)


def test_any_other_failure_makes_the_store_read_only_with_a_remedy(caplog: Any) -> None:
    async def test(broker: SimulatedBroker) -> None:
        index = following(broker)
        await send(broker, "a")
        broker.disk.fail_after(0, OSError(errno.EIO, "broken"), ("sync",))
        index.notify()
        await asyncio.sleep(1)
        assert "key index" in (broker.store.writer.read_only_reason or "")
        assert "directory `index`" in (broker.store.writer.read_only_reason or "")
        await index.stop()

    with pytest.raises(AssertionError, match="not closed cleanly"):  # the check finds this then
        run_with_broker(test)
    assert "store.became_read_only" in caplog.text


@pytest.mark.parametrize(
    ("lag_max_bytes", "feed_fullness", "turn_ms", "slice_ms"),
    [
        (1 << 60, 0.0, 5, SLICE_MS),
        (1, 0.0, 5, SLICE_MS + 5),
        (1, 0.0, 100, SLICE_MAX_MS),
        (1 << 60, 0.5, 6, SLICE_MS + 3),
    ],
)
def test_a_slice_ends_by_the_duration_of_its_steps(
    lag_max_bytes: int,
    feed_fullness: float,
    turn_ms: float,
    slice_ms: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(index_follower, "LAG_MAX_BYTES", lag_max_bytes)
    monkeypatch.setattr(IndexFeed, "fullness", feed_fullness)
    taken: dict[int, list[int]] = {}  # records of each step, by when its slice was

    async def test(broker: SimulatedBroker) -> None:
        await send(broker, *(f"key-{number}" for number in range(2_000)))
        step, now_s = broker.store.index_step, [0.0]

        def slow(records_max: int) -> IndexStep:
            if broker.clock.now_ms() not in taken:
                taken[broker.clock.now_ms()] = []
            taken[broker.clock.now_ms()].append(records_max)
            now_s[0] += 10e-6 * records_max
            return step(records_max)

        def time_s() -> float:
            if broker.clock.now_ms() not in taken and taken:
                now_s[0] += turn_ms / 1000
            return now_s[0]

        monkeypatch.setattr(broker.store, "index_step", slow)
        index = IndexFollower(broker.store, broker.runtime.offload, broker.clock, time_s=time_s)
        index.start()
        await asyncio.sleep(1)
        assert broker.store.index_lag_bytes == 0
        await index.stop()

    run_with_broker(test)
    first, *others = taken.values()
    took_ms = [10e-3 * sum(records) for records in others]
    assert abs(max(took_ms) - slice_ms) <= STEP_MS
    assert max(map(max, others)) <= STEP_MS / 10e-3 < first[0]


def test_short_steps_grow() -> None:
    async def test(broker: SimulatedBroker) -> None:
        await send(broker, *(f"key-{number}" for number in range(600)))
        index = IndexFollower(
            broker.store, broker.runtime.offload, broker.clock, time_s=lambda: 0.0
        )
        for _ in range(5):
            index.run_slice()
            broker.store.index_upkeep(broker.clock.now_ms())
        assert index.step_records == STEP_RECORDS_MAX
        await index.stop()

    run_with_broker(test)


def test_stopping_twice_and_without_start_is_harmless() -> None:
    async def test(broker: SimulatedBroker) -> None:
        index = following(broker)
        await index.stop()
        await index.stop()
        never = IndexFollower(broker.store, broker.runtime.offload, broker.clock)
        await never.stop()
        never.abandon()

        await send(broker, "a")
        for stopped in (index, never):
            stopped.notify()
        await asyncio.sleep(1)
        assert broker.store.index_lag_bytes > 0, "neither follows the log"

    run_with_broker(test)


def test_an_unexpected_failure_is_logged_once_and_skips_no_record(
    caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = ActiveIndexFile.add
    calls: list[int] = []

    def fail_at_first(file: ActiveIndexFile, entries: KeyEntries) -> int:
        calls.append(len(entries.hashes))
        if len(calls) <= 3:
            raise KeyError("unforeseen")
        return add(file, entries)

    async def test(broker: SimulatedBroker) -> None:
        await send(broker, *"abcdef")
        monkeypatch.setattr(ActiveIndexFile, "add", fail_at_first)
        index = following(broker)
        await asyncio.sleep(5 * RETRY_MS / 1000)
        assert broker.store.index_lag_bytes == 0
        assert calls == [6, 6, 6, 6]
        await index.stop()

    run_with_broker(test)
    assert caplog.text.count("index.following_failed") == 1
