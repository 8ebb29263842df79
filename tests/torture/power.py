"""Repeated power losses under a broker's group commit: acknowledged messages survive.

Each seed is a series of runs of a store on a simulated disk. Producers send single messages and
batches in virtual time; at an operation chosen by the seed the power fails or the process is
killed, sometimes after a failed sync. The store is opened again, with crashes during recovery, and
compared with the test's own ledger:

    sync mode    every message that was acknowledged or visible to consumers is stored
    async mode   the lost messages are a suffix of the log, after the synced position
    both         each message is at its acknowledged offset; no offset is missing; no other
                 messages are stored
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

import pytest

from kourou.broker.config import BrokerConfig, FlushDiskType
from kourou.broker.writing.group_commit import GroupCommit
from kourou.broker.writing.put import PutResult, PutStatus
from kourou.store.message_store import AppendedRecord, Arrival, MessageStore
from kourou.store.tools.check import check_store
from kourou.testing.disk import SimDisk
from kourou.testing.flusher import SimFlusher
from kourou.testing.loop import run_virtual
from tests.store.rig import CONFIG, draft
from tests.torture.figures import Figure, Outcome, Size, counted, run_cases
from tests.torture.more_steps import lose_power_in_any_file
from tests.torture.steps import PowerLostError, assert_survives_power_loss
from tests.torture.stored import stored_messages

FAULT: Final = "power loss"
QUEUES: Final = (("T", 0), ("T", 1), ("U", 0))
SENDERS: Final = 4
NOW_MS: Final = 1_700_000_000_000

LOST: Final = "acknowledged messages lost, sync mode"
TAKEN_BACK: Final = "visible messages lost, sync mode"
NOT_A_SUFFIX: Final = "losses that are no suffix, async mode"
HOLE: Final = "missing offsets and wrong bytes"
DAMAGE: Final = "findings of store check"
BROKEN: Final = "failed recoveries"
STEPS: Final = "lost or wrong, single steps"
MORE_STEPS: Final = "lost or wrong, with index, batches, expiry, deletion"

Place = tuple[str, int, int]


@dataclass
class Ledger:
    """The test's own record of the messages.

    Attributes:
        sent: all bodies ever sent.
        acknowledged: for each acknowledged body, its place, and the log position of its end.
        seen: bodies of visible messages by place; empty if not known.
        synced: synced position of the log.
    """

    sent: set[bytes] = field(default_factory=set)
    acknowledged: dict[bytes, tuple[Place, int]] = field(default_factory=dict)
    seen: dict[Place, bytes] = field(default_factory=dict)
    synced: int = 0


class Life:
    """A series of runs of one store, determined by a seed."""

    def __init__(self, seed: int, *, is_sync: bool) -> None:
        self._seed = seed
        self._is_sync = is_sync
        self._dice = Random(seed)
        self._disk = SimDisk(seed)
        self._ledger = Ledger()
        self._config = BrokerConfig(
            flush_disk_type=FlushDiskType.SYNC_FLUSH if is_sync else FlushDiskType.ASYNC_FLUSH,
            flush_interval_ms=self._dice.choice((5, 50, 500)),
            max_message_size_bytes=1500,
            store=CONFIG,
        )
        self._now_ms = NOW_MS
        self._is_over = False
        self.outcome = Outcome()

    async def live(self) -> None:
        """Run the store two to four times, and compare it after each power loss or kill."""
        for number in range(self._dice.randint(2, 4)):
            store = self._open(number)
            if store is None:
                return
            if not self._compare(store):
                store.abandon()
                return
            await self._work(store)
        self._end()

    def _fail(self, name: str, text: str) -> None:
        mode = "sync" if self._is_sync else "async"
        self.outcome.failures.append((name, f"seed {self._seed}, {mode}: {text}"))

    def _open(self, number: int) -> MessageStore | None:
        """Open the store, sometimes after crashes during recovery; None if it cannot be opened."""
        while number and self._dice.random() < 0.3:
            self._fail_power_after(self._dice.randrange(120))
            try:
                MessageStore.open(self._disk, CONFIG, self._now_ms, pid=1).abandon()
            except PowerLostError:
                self._disk.on_operation = None
                self._disk.crash()
            self._disk.on_operation = None
        try:
            return MessageStore.open(self._disk, CONFIG, self._now_ms, pid=1)
        except Exception as error:  # noqa: BLE001 - a finding, whatever it is
            self._fail(BROKEN, f"{type(error).__name__}: {error}")
            return None

    def _fail_power_after(self, operations: int) -> None:
        left = [operations]

        def count_down(_operation: str, _name: str) -> None:
            left[0] -= 1
            if left[0] < 0:
                self._is_over = True
                raise PowerLostError

        self._disk.on_operation = count_down

    async def _work(self, store: MessageStore) -> None:
        """Send until the power fails or the process is killed."""
        dice, loop = self._dice, asyncio.get_running_loop()
        self._is_over = False
        is_kill = dice.random() < 0.25
        flusher = SimFlusher(loop, dice.randrange(1 << 30), dice.choice(((0.1, 1), (1, 30))))
        commit = GroupCommit(store, flusher, loop, self._config, self._note_seen)
        self._fail_power_after(dice.choice((20, 200, 600)) * dice.randint(1, 100) // 100)
        if dice.random() < 0.15:
            broken = OSError(errno.EIO, "Input/output error")
            self._disk.fail_after(dice.randrange(200), broken, ["sync"])
        tasks = [loop.create_task(self._send(commit, name)) for name in range(SENDERS)]
        tasks.append(loop.create_task(self._flush(commit)))
        while not self._is_over:
            await asyncio.sleep(0.01)
            self._note_synced(store)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._disk.on_operation = None
        self._disk.clear_faults()
        commit.abandon()
        flusher.close()
        store.abandon()
        if not is_kill:
            self._disk.crash()
            self.outcome.counts["power losses"] += 1

    def _note_synced(self, store: MessageStore) -> None:
        if not self._is_over:
            self._ledger.synced = max(self._ledger.synced, store.reader.synced_position)

    async def _send(self, commit: GroupCommit, name: int) -> None:
        dice = self._dice
        while True:
            topic, queue_id = QUEUES[dice.randrange(len(QUEUES))]
            count = 1 if dice.random() < 0.8 else dice.randint(2, 4)
            size = dice.choice((10, 300, 900)) // count
            bodies = [
                b"%d-%d-%d-" % (name, len(self._ledger.sent), n) + dice.randbytes(size)
                for n in range(count)
            ]
            self._ledger.sent.update(bodies)
            drafts = [draft(body, topic=topic, queue_id=queue_id) for body in bodies]
            result = await commit.put_and_wait(drafts, self._time())
            if self._is_over:
                return
            if result.status is PutStatus.OK:
                self._note_acknowledged(bodies, result)
            elif result.status is PutStatus.SERVICE_NOT_AVAILABLE:
                await asyncio.sleep(0.1)
            await asyncio.sleep(dice.choice((0, 0.001, 0.02)))

    def _time(self) -> int:
        self._now_ms += 1
        return self._now_ms

    def _note_acknowledged(self, bodies: Sequence[bytes], result: PutResult) -> None:
        for body, appended in zip(bodies, result.appended, strict=True):
            self._ledger.acknowledged[body] = (_place(appended), appended.end)

    def _note_seen(self, arrivals: Sequence[Arrival]) -> None:
        if not self._is_over:
            self._ledger.seen.update(dict.fromkeys(map(_place, arrivals), b""))

    async def _flush(self, commit: GroupCommit) -> None:
        while True:
            await asyncio.sleep(self._dice.choice((0.02, 0.2)))
            self._now_ms += 1000
            commit.flush(self._now_ms)
            if self._dice.random() < 0.02:
                self._is_over = True  # end the run while idle

    # Comparing ------------------------------------------------------------------------------

    def _compare(self, store: MessageStore) -> bool:
        """Compare the stored messages with the ledger, and drop allowed losses from it."""
        before = len(self.outcome.failures)
        try:
            stored = read_all(store)
        except Exception as error:  # noqa: BLE001 - a finding, whatever it is
            self._fail(HOLE, f"{type(error).__name__}: {error}")
            return False
        for place, body in stored.items():
            if body not in self._ledger.sent:
                self._fail(HOLE, f"{place} has a body that was never sent")
        lost = [
            (end, place)
            for body, (place, end) in self._ledger.acknowledged.items()
            if stored.get(place) != body
        ]
        self.outcome.counts["acknowledged messages"] += len(self._ledger.acknowledged)
        if self._is_sync:
            self._judge_lost(lost, stored)
        elif lost:
            self._judge_suffix(lost, stored)
        self._ledger.acknowledged = {
            body: (place, end)
            for body, (place, end) in self._ledger.acknowledged.items()
            if stored.get(place) == body
        }
        self._ledger.seen = dict(stored)
        self._ledger.synced = 0
        return len(self.outcome.failures) == before

    def _judge_lost(self, lost: list[tuple[int, Place]], stored: dict[Place, bytes]) -> None:
        for _, place in lost:
            self._fail(LOST, f"{place} was acknowledged")
        for place, body in self._ledger.seen.items():
            if place not in stored or (body and stored[place] != body):
                self._fail(TAKEN_BACK, f"{place} could be read")

    def _judge_suffix(self, lost: list[tuple[int, Place]], stored: dict[Place, bytes]) -> None:
        """Fail unless the lost messages are after all stored ones and were not synced."""
        first_lost = min(lost)
        left = [
            end
            for body, (place, end) in self._ledger.acknowledged.items()
            if stored.get(place) == body
        ]
        if left and max(left) > first_lost[0]:
            self._fail(NOT_A_SUFFIX, f"{first_lost[1]} is lost, a later message is stored")
        if first_lost[0] <= self._ledger.synced:
            self._fail(NOT_A_SUFFIX, f"{first_lost[1]} is lost, and was synced")
        self.outcome.counts["losses of a suffix"] += 1

    def _end(self) -> None:
        """Open the store a last time, close it cleanly, and check the files."""
        store = self._open(1)
        if store is None or not self._compare(store):
            return
        store.close(self._now_ms)
        for finding in check_store(self._disk).findings:
            self._fail(DAMAGE, f"{finding.file} at {finding.offset}: {finding.problem}")


def _place(appended: Arrival | AppendedRecord) -> Place:
    return appended.topic, appended.queue_id, appended.queue_offset


def read_all(store: MessageStore) -> dict[Place, bytes]:
    """Return the body at each place, read like a consumer.

    Raises:
        AssertionError: an offset is missing.
        KourouError: a record is damaged.
    """
    return {
        (topic, queue_id, message.queue_offset): message.body
        for topic, queue_id in QUEUES
        for message in stored_messages(store, topic, queue_id)
    }


def lose_power_in_sync_mode(seed: int) -> Outcome:
    """Return the outcome of one seed."""
    return _live(seed, is_sync=True)


def lose_power_in_async_mode(seed: int) -> Outcome:
    """Return the outcome of one seed."""
    return _live(seed, is_sync=False)


def _live(seed: int, *, is_sync: bool) -> Outcome:
    logging.disable(logging.CRITICAL)  # thousands of stores would log their recovery
    life = Life(seed, is_sync=is_sync)
    try:
        run_virtual(life.live())
    finally:
        logging.disable(logging.NOTSET)
    life.outcome.counts["seeds"] += 1
    return life.outcome


def step_by_step(seed: int) -> Outcome:
    """Return the outcome of one seed of `tests.torture.steps`."""
    return _steps(STEPS, assert_survives_power_loss, seed)


def step_by_step_in_any_file(seed: int) -> Outcome:
    """Return the outcome of one seed of `tests.torture.more_steps`."""
    return _steps(MORE_STEPS, lose_power_in_any_file, seed)


def _steps(figure: str, lose_power: Callable[[int], None], seed: int) -> Outcome:
    logging.disable(logging.CRITICAL)
    outcome = Outcome()
    try:
        lose_power(seed)
    except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - a finding
        outcome.failures.append((figure, f"seed {seed}: {type(error).__name__}: {error}"))
    finally:
        logging.disable(logging.NOTSET)
    outcome.counts["seeds"] += 1
    return outcome


def run(size: Size) -> list[Figure]:
    """Return the figures of `size.seeds` power losses in each mode."""
    seeds = range(size.seed, size.seed + size.seeds)
    in_sync = run_cases(lose_power_in_sync_mode, seeds, size, "power loss, sync mode")
    in_async = run_cases(lose_power_in_async_mode, seeds, size, "power loss, async mode")
    steps = run_cases(step_by_step, seeds, size, "power loss, single steps")
    more = run_cases(step_by_step_in_any_file, seeds, size, "power loss, steps in any file")
    both = Outcome()
    both.add(in_sync)
    both.add(in_async)
    return [
        counted(FAULT, LOST, in_sync, "acknowledged messages"),
        counted(FAULT, TAKEN_BACK, in_sync, "seeds"),
        counted(FAULT, NOT_A_SUFFIX, in_async, "losses of a suffix"),
        counted(FAULT, HOLE, both, "seeds"),
        counted(FAULT, BROKEN, both, "seeds"),
        counted(FAULT, DAMAGE, both, "seeds"),
        counted(FAULT, STEPS, steps, "seeds"),
        counted(FAULT, MORE_STEPS, more, "seeds"),
    ]
