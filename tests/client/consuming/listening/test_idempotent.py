"""A message is handled once, however often it is delivered."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kourou.client.consuming.listening.idempotent import Idempotent, by_key, by_unique_id
from kourou.client.consuming.listening.seen_store import (
    DAY_MS,
    SETTLED_AFTER_MS,
    SeenInMemory,
    SeenInSqlite,
)
from kourou.client.user_functions import is_coroutine_function
from kourou.errors import DuplicateInProgressError, ForkedError, InvalidMessageError, UsageError
from kourou.model.message import MessageExt
from kourou.testing.clock import ManualClock
from tests.client.consuming.messages import message_at


def message(uid: str = "A1", keys: str = "o-17", topic: str = "Orders") -> MessageExt:
    return message_at(topic=topic, properties={"UNIQ_KEY": uid, "KEYS": keys})


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def database(tmp_path: Path, clock: ManualClock) -> Iterator[SeenInSqlite]:
    seen = SeenInSqlite(tmp_path / "orders.db", clock=clock)
    yield seen
    seen.close()


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def charge(order: MessageExt, db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE IF NOT EXISTS charges (uid TEXT)")
    db.execute("INSERT INTO charges VALUES (?)", (order.msg_id,))


def test_a_second_delivery_is_not_handled() -> None:
    handled: list[str] = []
    listener = Idempotent(lambda m: handled.append(m.msg_id), seen=SeenInMemory())

    for uid in ("A1", "A1", "A2", "A1"):
        listener(message(uid))

    assert handled == ["A1", "A2"]


def test_a_delivery_that_failed_is_handled_again() -> None:
    attempts: list[str] = []

    def fail_first(order: MessageExt) -> None:
        attempts.append(order.msg_id)
        if len(attempts) == 1:
            raise ConnectionError("bank is closed")

    listener = Idempotent(fail_first, seen=SeenInMemory())

    with pytest.raises(ConnectionError):
        listener(message())
    listener(message())
    listener(message())

    assert attempts == ["A1", "A1"]


def test_a_coroutine_function_handler_makes_a_coroutine_listener() -> None:
    handled: list[str] = []

    async def handle(order: MessageExt) -> None:
        await asyncio.sleep(0)
        handled.append(order.msg_id)

    listener = Idempotent(handle, seen=SeenInMemory())

    assert is_coroutine_function(listener)
    assert not is_coroutine_function(Idempotent(print, seen=SeenInMemory()))

    async def twice() -> None:
        await listener(message())
        await listener(message())

    asyncio.run(twice())
    assert handled == ["A1"]


def test_a_duplicate_of_a_message_in_progress_is_not_acknowledged() -> None:
    async def run() -> None:
        entered, may_end = asyncio.Event(), asyncio.Event()

        async def slow(_: MessageExt) -> None:
            entered.set()
            await may_end.wait()

        listener = Idempotent(slow, seen=SeenInMemory())
        first = asyncio.create_task(listener(message()))
        await entered.wait()
        with pytest.raises(DuplicateInProgressError, match="A1"):
            await listener(message())
        may_end.set()
        await first
        await listener(message())

    asyncio.run(run())


def test_memory_drops_the_oldest_entries_above_its_limit() -> None:
    handled: list[str] = []
    seen = SeenInMemory(entries_max=2)
    listener = Idempotent(lambda m: handled.append(m.msg_id), seen=seen)

    for uid in ("A1", "A2", "A3", "A1"):
        listener(message(uid))

    assert handled == ["A1", "A2", "A3", "A1"]
    assert len(seen) == 2


def test_by_key_identifies_messages_within_a_topic() -> None:
    handled: list[str] = []
    listener = Idempotent(lambda m: handled.append(m.msg_id), seen=SeenInMemory(), identity=by_key)

    listener(message("A1", keys="o-17"))
    listener(message("A2", keys="o-17"))
    listener(message("A3", keys="o-17", topic="Refunds"))
    listener(message("A4", keys="o-18"))

    assert handled == ["A1", "A3", "A4"]


def test_by_key_refuses_a_message_without_a_key() -> None:
    with pytest.raises(InvalidMessageError, match="A1 of Orders has no key"):
        by_key(message(keys=""))


def test_a_message_without_a_unique_id_is_identified_by_its_original_id() -> None:
    anonymous = message()
    del anonymous.properties["UNIQ_KEY"]
    assert by_unique_id(anonymous) == anonymous.offset_msg_id
    anonymous.properties["ORIGIN_MESSAGE_ID"] = "F00D"
    assert by_unique_id(anonymous) == "F00D"


def test_effect_and_record_are_committed_together(database: SeenInSqlite, tmp_path: Path) -> None:
    listener = Idempotent(charge, seen=database)

    listener(message("A1"))
    listener(message("A1"))

    assert rows(tmp_path / "orders.db", "SELECT uid FROM charges") == [("A1",)]
    assert rows(tmp_path / "orders.db", "SELECT identity FROM kourou_seen") == [("A1",)]


def test_a_handler_that_raises_leaves_neither_effect_nor_record(
    database: SeenInSqlite, tmp_path: Path
) -> None:
    def charge_and_fail(order: MessageExt, db: sqlite3.Connection) -> None:
        charge(order, db)
        raise ConnectionError("after the insert")

    with pytest.raises(ConnectionError):
        Idempotent(charge_and_fail, seen=database)(message())

    assert rows(tmp_path / "orders.db", "SELECT identity FROM kourou_seen") == []
    Idempotent(charge, seen=database)(message())
    assert rows(tmp_path / "orders.db", "SELECT uid FROM charges") == [("A1",)]


def test_handled_messages_are_known_after_a_restart(tmp_path: Path) -> None:
    for _ in range(2):
        seen = SeenInSqlite(tmp_path / "orders.db")
        Idempotent(charge, seen=seen)(message())
        seen.close()

    assert rows(tmp_path / "orders.db", "SELECT uid FROM charges") == [("A1",)]


def test_threads_of_two_programs_handle_each_message_once(tmp_path: Path) -> None:
    stores = [SeenInSqlite(tmp_path / "orders.db") for _ in range(2)]
    Idempotent(charge, seen=stores[0])(message("first"))  # creates the table
    listeners = [Idempotent(charge, seen=seen) for seen in stores]
    start = threading.Barrier(8)

    def deliver(worker: int) -> None:
        start.wait(10)
        for number in range(10):
            listeners[worker % 2](message(f"A{number}"))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(deliver, range(8)))
    for seen in stores:
        seen.close()

    charged = [row[0] for row in rows(tmp_path / "orders.db", "SELECT uid FROM charges")]
    assert sorted(map(str, charged)) == sorted(["first", *(f"A{n}" for n in range(10))])


def test_a_handler_that_commits_itself_is_an_error(database: SeenInSqlite) -> None:
    def commit(_: MessageExt, db: sqlite3.Connection) -> None:
        db.commit()

    with pytest.raises(UsageError, match="leave commit and rollback to SeenInSqlite"):
        Idempotent(commit, seen=database)(message())
    Idempotent(charge, seen=database)(message("A2"))  # the next one has its own transaction


def test_old_entries_are_deleted(tmp_path: Path, clock: ManualClock) -> None:
    for number, advance_ms in enumerate((0, 8 * DAY_MS, SETTLED_AFTER_MS)):
        clock.advance(advance_ms)
        handle_in(tmp_path, clock, str(number))

    left = rows(tmp_path / "orders.db", "SELECT identity FROM kourou_seen ORDER BY identity")
    assert left == [("1",), ("2",)]


def handle_in(tmp_path: Path, clock: ManualClock, uid: str) -> None:
    """Handle one message in a newly opened database, as a short-lived program would."""
    seen = SeenInSqlite(tmp_path / "orders.db", keep_ms=7 * DAY_MS, clock=clock)
    Idempotent(charge, seen=seen)(message(uid))
    seen.close()


@pytest.mark.parametrize("step_ms", [-3650 * DAY_MS, -8 * DAY_MS, 8 * DAY_MS, 3650 * DAY_MS])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_clock_wrong_for_less_than_an_hour_deletes_nothing(
    tmp_path: Path, clock: ManualClock, step_ms: int, *, is_restarted: bool
) -> None:
    steps_ms = (0, step_ms, SETTLED_AFTER_MS - 1, 1 - step_ms, step_ms, 5, -step_ms, DAY_MS, DAY_MS)
    running = SeenInSqlite(tmp_path / "orders.db", keep_ms=7 * DAY_MS, clock=clock)
    for number, advance_ms in enumerate(steps_ms):
        clock.advance(advance_ms)
        if is_restarted:
            handle_in(tmp_path, clock, str(number))
        else:
            Idempotent(charge, seen=running)(message(str(number)))
    running.close()
    for number in range(len(steps_ms)):
        handle_in(tmp_path, clock, str(number))

    charged = rows(tmp_path / "orders.db", "SELECT uid FROM charges ORDER BY uid")
    assert charged == [(str(number),) for number in range(len(steps_ms))], "each once"


def test_a_coroutine_function_cannot_hold_a_transaction_open(database: SeenInSqlite) -> None:
    async def handle(_: MessageExt, db: sqlite3.Connection) -> None:
        db.execute("SELECT 1")

    with pytest.raises(UsageError, match="plain function"):
        Idempotent(handle, seen=database)


@pytest.mark.parametrize("entries_max", [0, -1])
def test_a_seen_store_without_capacity_is_refused(entries_max: int) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        SeenInMemory(entries_max)


def test_an_object_whose_call_is_a_coroutine_is_awaited() -> None:
    class Handler:
        def __init__(self) -> None:
            self.handled: list[str] = []

        async def __call__(self, m: MessageExt) -> None:
            await asyncio.sleep(0)
            self.handled.append(m.msg_id)

    async def main() -> None:
        handler = Handler()
        listener = Idempotent(handler, seen=SeenInMemory())
        assert is_coroutine_function(listener)
        for _ in range(2):
            await listener(message())
        assert handler.handled == ["A1"]

    asyncio.run(main())


def test_a_message_whose_handler_returns_an_awaitable_is_not_handled() -> None:
    async def later(_: MessageExt) -> None:
        raise AssertionError("never run")

    seen = SeenInMemory()
    listener = Idempotent(lambda m: later(m), seen=seen)  # noqa: PLW0108 - hides that it is one
    with pytest.raises(UsageError, match="make it a coroutine function"):
        listener(message())
    assert len(seen) == 0


def test_a_forked_child_cannot_use_its_parent_s_database(database: SeenInSqlite) -> None:
    child = os.fork()
    if child == 0:
        try:
            with database.once("A1"):
                os._exit(1)
        except ForkedError:
            os._exit(0)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with database.once("A1") as connection:
        assert connection is not None


def test_an_unusable_database_is_reported_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"absent/x.db: unable to open database file: choose a file"
    ):
        SeenInSqlite(tmp_path / "absent" / "x.db")
