"""Acknowledged scheduled messages are delivered once and never early after random crashes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import ParamSpec, TypeVar

import pytest

from kourou.broker.config import BrokerConfig
from kourou.broker.timer.timer_config import TimerConfig
from kourou.broker.writing.put import Done, PutResult, PutStatus
from kourou.protocol.record.encode import RecordDraft
from kourou.store.config import StoreConfig
from kourou.store.timer.timer_log import TIMER_LOG
from kourou.store.timer.timer_rebuild import remove_timer_files
from kourou.store.timer.wheel_files import TIMER_CHECK
from kourou.store.tools.check import check_store
from kourou.store.tools.rebuild import rebuild
from kourou.testing.clock import EPOCH_MS
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker, small_config
from tests.broker.delays.delay_rig import bodies, messages
from tests.broker.timer.timer_rig import timer_draft

P = ParamSpec("P")
T = TypeVar("T")
RUNS = 4


class PowerLostError(OSError):
    """Raised by the disk at the power cut; the operation has no effect."""


class CrashRuns:
    """One store, and successive brokers that crash on it.

    Attributes:
        due: name -> due time of each message sent.
        kept: names of acknowledged messages.
        recalled: names of messages with an acknowledged recall.
    """

    def __init__(self, seed: int, *, timers_later: bool = False) -> None:
        self._timers_later = timers_later
        self.disk = SimDisk(seed)
        self.dice = Random(seed)
        self.config = _config()
        self.due: dict[bytes, int] = {}
        self.kept: set[bytes] = set()
        self.recalled: set[bytes] = set()
        self._recalling: set[bytes] = set()

    async def run_until_crash(self, *, is_killed: bool) -> None:
        seed = self.dice.randrange(1000)
        broker = SimulatedBroker(self.disk, config=self.config, seed=seed, offload=self._offload)
        over = asyncio.Event()
        left = self.dice.randrange(20, 700)

        def on_operation(_operation: str, _name: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                over.set()
                if not is_killed:
                    raise PowerLostError

        await broker.start_deliveries(timers_later=self._timers_later)
        self.disk.on_operation = on_operation
        tasks = [asyncio.create_task(self._send(broker)), asyncio.create_task(_flush(broker))]
        try:
            async with asyncio.timeout(self.dice.uniform(0.5, 9)):
                await over.wait()
        except TimeoutError:
            pass
        broker.abandon()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.disk.on_operation = None
        if is_killed:
            return
        self.disk.crash()

    async def _offload(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function; messages are sent while timer files are opened in the background."""
        if self._timers_later and function.__name__ == "_open":
            await asyncio.sleep(self.dice.choice((0.0, 0.4, 3.0)))
        return function(*args, **kwargs)

    async def _send(self, broker: SimulatedBroker) -> None:
        """Schedule messages for the near future, and recall some of them."""
        while True:
            now_ms = broker.clock.now_ms()
            for _ in range(self.dice.choice((1, 1, 3, 20))):
                name = f"m{len(self.due)}".encode()
                self.due[name] = now_ms + self.dice.choice((50, 700, 2_000, 3_000, 9_000, 30_000))
                draft = timer_draft(broker, name, self.due[name])
                _put(broker, name, draft, self.kept)
            if self.dice.random() < 0.3:
                self._recall(broker, now_ms)
            await asyncio.sleep(self.dice.choice((0.0, 0.003, 0.2, 1.1)))

    def _recall(self, broker: SimulatedBroker, now_ms: int) -> None:
        later = [name for name, due_ms in self.due.items() if due_ms // 1000 * 1000 - 1000 > now_ms]
        if not later:
            return
        name = self.dice.choice(later)
        self._recalling.add(name)
        at_ms = (self.due[name] - 1) // 1000 * 1000 + 1
        broker.timers.recall(("T", f"id-{name.decode()}"), at_ms)
        unique_id = f"id-{name.decode()}"  # shared, as in recalls made by the broker
        draft = timer_draft(broker, b"0", at_ms, recalls=unique_id, unique_id=unique_id)
        _put(broker, name, draft, self.recalled)

    async def run_to_end(self) -> None:
        """Run without a crash until all messages are delivered, and check the deliveries."""
        broker = SimulatedBroker(self.disk, config=self.config)
        await broker.start_deliveries()
        await asyncio.sleep(120)
        self._check_deliveries(broker)
        assert broker.timers.waiting == 0
        await broker.stop()
        assert check_store(self.disk).findings == []

    def _check_deliveries(self, broker: SimulatedBroker) -> None:
        came = messages(broker)
        counts = Counter(message.body for message in came)
        lost = self.kept - self._recalling - set(counts)
        assert not lost, f"lost: {sorted(lost)}"
        twice = [name for name, count in counts.items() if count > 1]
        assert not twice, f"twice: {twice}"
        back = self.recalled & set(counts)
        assert not back, f"recalled, and delivered: {sorted(back)}"
        for message in came:
            assert message.store_at_ms >= self.due[message.body], (
                f"{message.body!r} was delivered early"
            )


def _config() -> BrokerConfig:
    store = StoreConfig(commitlog_segment_bytes=1 << 16, consumequeue_file_bytes=20 * 50)
    return small_config(
        store=store,
        max_message_size_bytes=1 << 15,
        timer=TimerConfig(timer_log_file_bytes=52 * 30 + 20, timer_roll_window_slot=12),
    )


def _put(
    broker: SimulatedBroker, name: bytes, draft: RecordDraft, acknowledged: set[bytes]
) -> None:
    def done(result: PutResult) -> None:
        if result.status is PutStatus.OK:
            acknowledged.add(name)

    broker.commit.put([draft], broker.clock.now_ms(), done)


async def _flush(broker: SimulatedBroker) -> None:
    while True:
        await asyncio.sleep(0.37)
        try:
            broker.commit.flush(broker.clock.now_ms())
            await broker.timers.storage.flush()
        except OSError:
            pass


def lose_nothing(_disk: SimDisk) -> None:
    """Leave the files unchanged."""


def lose_check_file(disk: SimDisk) -> None:
    disk.unlink(TIMER_CHECK)


def lose_timer_log(disk: SimDisk) -> None:
    for name in disk.list(TIMER_LOG):
        disk.unlink(f"{TIMER_LOG}/{name}")


def lose_first_files(disk: SimDisk) -> None:
    for name in disk.list(TIMER_LOG)[:-1]:
        disk.unlink(f"{TIMER_LOG}/{name}")


def rebuild_all(disk: SimDisk) -> None:
    rebuild(disk, EPOCH_MS, pid=1)


def assert_outlived(
    seed: int,
    *,
    is_killed: bool,
    lose: Callable[[SimDisk], object] = lose_nothing,
    timers_later: bool = False,
) -> None:
    async def main() -> None:
        runs = CrashRuns(seed, timers_later=timers_later)
        for _ in range(RUNS):
            await runs.run_until_crash(is_killed=is_killed)
            await asyncio.sleep(runs.dice.choice((0, 0.5, 7)))
            lose(runs.disk)
        await runs.run_to_end()

    run_virtual(main())


@pytest.mark.parametrize("seed", [*range(6), 94, 136, 362, 517])
def test_kills_neither_lose_nor_repeat_messages(seed: int) -> None:
    assert_outlived(seed, is_killed=True)


@pytest.mark.parametrize("seed", [*range(100, 106), 143, 149, 159])
def test_power_cuts_neither_lose_nor_repeat_messages(seed: int) -> None:
    assert_outlived(seed, is_killed=False)


@pytest.mark.parametrize(
    "lose", [lose_check_file, lose_timer_log, lose_first_files, remove_timer_files, rebuild_all]
)
@pytest.mark.parametrize("seed", [201, 202, 203])
def test_missing_timer_files_are_rebuilt_from_the_log(
    seed: int, lose: Callable[[SimDisk], object]
) -> None:
    # A rebuild treats all that it reads as durable, also records after one lost in a power cut.
    assert_outlived(seed, is_killed=bool(seed % 2) or lose is rebuild_all, lose=lose)


@pytest.mark.parametrize("lose", [lose_nothing, remove_timer_files])
@pytest.mark.parametrize("seed", [*range(301, 307)])
def test_files_that_are_opened_while_messages_are_sent_neither_lose_nor_repeat_any(
    seed: int, lose: Callable[[SimDisk], object]
) -> None:
    assert_outlived(seed, is_killed=bool(seed % 2), lose=lose, timers_later=True)


class Unconfirmed:
    """Stores messages, and refuses them a second later: no slave has reported them."""

    def __init__(self, broker: SimulatedBroker) -> None:
        self._commit = broker.commit

    def put(
        self, drafts: Sequence[RecordDraft], now_ms: int, done: Done, *, answers_late: bool = True
    ) -> None:
        def refuse_later(_: PutResult) -> None:
            refused = PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason="not confirmed")
            asyncio.get_running_loop().call_later(1, done, refused)

        self._commit.put(drafts, now_ms, refuse_later, answers_late=answers_late)


def test_deliveries_that_were_not_confirmed_before_a_stop_are_found_in_the_log() -> None:
    disk = SimDisk()

    async def stop(broker: SimulatedBroker) -> None:
        draft = timer_draft(broker, b"x", broker.clock.now_ms() + 1_500)
        await broker.store_messages([draft])
        broker.timers._puts = Unconfirmed(broker)
        await asyncio.sleep(2)
        assert bodies(broker) == [b"x"]

    async def start(broker: SimulatedBroker) -> None:
        await asyncio.sleep(5)
        assert bodies(broker) == [b"x"]
        assert broker.timers.waiting == 0

    run_with_broker(stop, disk, is_delivering=True)
    run_with_broker(start, disk, later_ms=10_000, is_delivering=True)
