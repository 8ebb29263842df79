"""After any crash, a committed message is delivered once and a rolled-back one never."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kourou.broker.transactions.transaction_config import TransactionConfig
from kourou.model.topic import TRANS_OP_HALF_TOPIC
from kourou.protocol.codes import ResponseCode
from kourou.store.tools.check import check_store
from kourou.testing.disk import SimDisk
from kourou.testing.lone_connection import LoneConnection
from kourou.testing.loop import run_virtual
from kourou.testing.simulated_broker import SimulatedBroker, small_config
from tests.broker.transactions.test_fast_end import frame
from tests.broker.transactions.transaction_rig import (
    COMMIT,
    ROLLBACK,
    Half,
    TransactionRig,
    checked_half,
    run,
    run_killed,
)


def test_a_commit_without_its_op_message_is_found_by_its_record() -> None:
    halves: list[Half] = []

    async def committed(rig: TransactionRig) -> None:
        halves.extend([await rig.half(b"%d" % n) for n in range(3)])
        for half in halves[:2]:
            assert (await rig.end(half, COMMIT)).code == ResponseCode.SUCCESS
        assert not rig.ops()

    async def after(rig: TransactionRig) -> None:
        producer = rig.connect()
        assert (await rig.end(halves[0], COMMIT)).code == ResponseCode.SUCCESS
        await rig.round(after_s=30)
        [check] = producer.sent
        assert (await rig.end(checked_half(check), ROLLBACK)).code == ResponseCode.SUCCESS
        assert rig.bodies() == [b"0", b"1"]
        assert {0, 1, 2} <= {offset for op in rig.ops() for offset in op}
        assert rig.transactions.counts.open_by_topic()["T"] == 0

    run(after, run_killed(committed), later_ms=10_000)


def test_an_acknowledged_rollback_survives_a_power_cut() -> None:
    async def rolled_back(rig: TransactionRig) -> None:
        half = await rig.half()
        assert (await rig.end(half, ROLLBACK)).code == ResponseCode.SUCCESS

    async def after(rig: TransactionRig) -> None:
        producer = rig.connect()
        await rig.round(after_s=30)
        assert not producer.sent
        assert not rig.bodies()

    run(after, run_killed(rolled_back, is_power_cut=True), later_ms=10_000)


@pytest.mark.parametrize("is_fast", [True, False])
def test_half_message_that_names_another_transaction_does_not_replace_it(is_fast: bool) -> None:
    halves: list[Half] = []

    async def forged(rig: TransactionRig) -> None:
        halves.append(await rig.half(b"theirs"))
        fields: dict[str, Any] = {"TRAN_PREPARED_QUEUE_OFFSET": "0", "TRANSACTION_CHECK_TIMES": "9"}
        lone = rig.sends.connect(is_fast=is_fast)
        halves.append(await rig.half(b"forged", group="other", lone=lone, **fields))
        rig.connect()
        rig.connect("other", 40_001)
        await rig.round(after_s=30)

    async def after(rig: TransactionRig) -> None:
        assert (await rig.end(halves[1], ROLLBACK)).code == ResponseCode.SUCCESS
        assert (await rig.end(halves[0], COMMIT)).code == ResponseCode.SUCCESS
        assert rig.bodies() == [b"theirs"]

    async def both(rig: TransactionRig) -> None:
        await forged(rig)
        await after(rig)

    run(both)
    halves.clear()
    run(after, run_killed(forged), later_ms=10_000)


def test_a_message_given_up_before_a_crash_is_kept_once() -> None:
    halves: list[Half] = []

    async def given_up(rig: TransactionRig) -> None:
        halves.extend([await rig.half(b"%d" % n) for n in range(3)])
        await rig.round(after_s=30)
        await rig.round(after_s=30)
        assert len(rig.given_up()) == 3
        assert rig.ops() == [[0, 1, 2]], "checks stored them again as 3 to 5"

    async def after(rig: TransactionRig) -> None:
        producer = rig.connect()
        assert (await rig.resume(rig.given_up()[2].offset_msg_id)).code == ResponseCode.SUCCESS
        await rig.round(after_s=20)
        assert len(rig.given_up()) == 3
        assert len(producer.sent) == 1, "the check of the resumed message"
        assert rig.transactions.counts.open_by_topic()["T"] == 1
        assert (await rig.end(halves[0], COMMIT)).code == ResponseCode.SUCCESS
        assert rig.bodies() == [b"0"]

    disk = run_killed(given_up, check_max=1)
    run(after, disk, later_ms=100_000, check_max=1)


def test_a_message_given_up_before_a_restart_can_be_resumed() -> None:
    halves: list[Half] = []

    async def given_up(rig: TransactionRig) -> None:
        halves.append(await rig.half(b"open", CHECK_IMMUNITY_TIME_IN_SECONDS="3600"))
        halves.append(await rig.half(b"given up"))
        await rig.round(after_s=30)
        await rig.round(after_s=30)
        assert [message.body for message in rig.given_up()] == [b"given up"]

    async def after(rig: TransactionRig) -> None:
        producer = rig.connect()
        [kept] = rig.given_up()
        assert (await rig.resume(kept.offset_msg_id)).code == ResponseCode.SUCCESS
        await rig.round(after_s=20)
        [check] = producer.sent
        asked = checked_half(check)
        assert (await rig.end(asked, COMMIT, is_checked=True)).code == ResponseCode.SUCCESS
        assert rig.bodies() == [b"given up"]
        assert (await rig.end(halves[0], COMMIT)).code == ResponseCode.SUCCESS

    run(after, run(given_up, check_max=1), later_ms=100_000, check_max=1)


def test_ends_naming_old_and_new_records_commit_one_message_after_a_crash() -> None:
    halves: list[Half] = []

    async def checked(rig: TransactionRig) -> None:
        producer = rig.connect()
        halves.append(await rig.half())
        for _ in range(2):
            await rig.round(after_s=30)
        halves.extend(checked_half(one) for one in producer.sent)

    async def after(rig: TransactionRig) -> None:
        producer = rig.connect()
        for half in halves:
            assert (await rig.end(half, COMMIT, is_checked=True)).code == ResponseCode.SUCCESS
        for _ in range(3):
            await rig.round(after_s=30)
        assert not producer.sent
        assert len(rig.bodies()) == 1

    run(after, run_killed(checked), later_ms=100_000)


def test_a_clean_stop_leaves_nothing_to_recover() -> None:
    async def ended(rig: TransactionRig) -> None:
        for _ in range(5):
            rig.begin_end(await rig.half(), COMMIT)

    async def after(rig: TransactionRig) -> None:
        await asyncio.sleep(1)
        assert len(rig.bodies()) == 5
        assert rig.progress() == (5, rig.broker.store.reader.max_offset(TRANS_OP_HALF_TOPIC, 0))

    disk = run(ended)
    run(after, disk, later_ms=10_000)


@dataclass
class History:
    """Transactions as their producers know them.

    Attributes:
        truth: body -> commit or rollback.
        halves: body -> the half records in answers and checks.
        stored: bodies of half messages that were acknowledged.
        ended: bodies whose end was acknowledged.
    """

    truth: dict[bytes, int] = field(default_factory=dict)
    halves: dict[bytes, list[Half]] = field(default_factory=dict)
    stored: set[bytes] = field(default_factory=set)
    ended: set[bytes] = field(default_factory=set)


class PowerLostError(Exception):
    """Raised by the disk at the power cut."""


Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(["commit", "roll back", "end", "end", "twice", "tell", "check",
                               "wait"]), st.integers(0, 20)),
    min_size=3, max_size=15,
)  # fmt: skip
LIVES = st.lists(st.tuples(STEPS, st.integers(1, 120), st.booleans()), min_size=1, max_size=4)


class Producers:
    """Producers that use one broker until it is killed."""

    def __init__(self, rig: TransactionRig, history: History) -> None:
        self.rig = rig
        self.history = history
        self.peer = rig.connect()
        self.lone = LoneConnection(rig.handlers, rig.sends.fast_path)
        self.sender = rig.sends.connect(is_fast=True)
        self._asked = 0

    async def step(self, kind: str, number: int) -> None:
        """Run one step of a scenario."""
        history = self.history
        if kind in ("commit", "roll back"):
            body = b"%d" % len(history.truth)
            history.truth[body] = COMMIT if kind == "commit" else ROLLBACK
            lone = self.sender if number % 2 else None
            unique_id = f"{len(history.truth):032X}"
            half = await self.rig.half(body, queue_id=number % 4, UNIQ_KEY=unique_id, lone=lone)
            history.stored.add(body)
            history.halves[body] = [half]
        elif kind in ("end", "twice") and history.halves:
            body = sorted(history.halves)[number % len(history.halves)]
            records = history.halves[body]
            for _ in range(2 if kind == "twice" else 1):
                half = records[number % len(records)]
                answer = await self.rig.end(half, history.truth[body], is_checked=True)
                if answer.code == ResponseCode.SUCCESS:
                    history.ended.add(body)
        elif kind == "tell" and history.halves:
            for body, records in sorted(history.halves.items())[number % 3 :]:
                self.lone.receive_bytes(frame(records[0], history.truth[body]))
        elif kind == "check":
            await self.rig.round(after_s=31)
        else:
            await asyncio.sleep(number / 4)
        self._note_checks()

    def _note_checks(self) -> None:
        """Note the records of the checks received."""
        for check in self.peer.sent[self._asked :]:
            half = checked_half(check)
            for records in self.history.halves.values():
                if records[0].unique_key == half.unique_key:
                    records.append(half)
        self._asked = len(self.peer.sent)


def live(disk: SimDisk, history: History, steps: list[Step], operations: int, *, is_kill: bool,
         later_ms: int) -> None:  # fmt: skip
    """Run a broker until a given disk operation."""

    async def main() -> None:
        config = small_config(transactions=TransactionConfig(check_max=100))
        broker = SimulatedBroker(disk, config=config, later_ms=later_ms)
        broker.transactions.start()
        await broker.topics.persist()
        rig = TransactionRig(broker)
        producers = Producers(rig, history)
        left = operations
        dead = asyncio.Event()

        def on_operation(_operation: str, _name: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                dead.set()
                if not is_kill:
                    raise PowerLostError

        async def act() -> None:
            for kind, number in steps:
                await producers.step(kind, number)

        disk.on_operation = on_operation
        acting = asyncio.create_task(act())
        dying = asyncio.create_task(dead.wait())
        await asyncio.wait([acting, dying], return_when=asyncio.FIRST_COMPLETED)
        for task in (acting, dying):
            task.cancel()
        disk.on_operation = None
        broker.abandon()
        await asyncio.gather(acting, dying, return_exceptions=True)

    run_virtual(main())
    if not is_kill:
        disk.crash()


async def settle_all(rig: TransactionRig, history: History) -> None:
    """Run check rounds, and send every end once more."""
    producers = Producers(rig, history)
    for _ in range(4):
        await producers.step("check", 0)
        for body, records in history.halves.items():
            for half in records:
                await rig.end(half, history.truth[body], is_checked=True)


def check_outcome(counts: Counter[bytes], history: History) -> None:
    """Compare the messages of the topic with the producers' commits and rollbacks."""
    for body, verdict in history.truth.items():
        if verdict == ROLLBACK:
            assert counts[body] == 0, f"{body!r} was rolled back"
        elif body in history.stored:
            assert counts[body] == 1, f"{body!r} was stored and committed"
        else:
            assert counts[body] <= 1


@settings(max_examples=60, deadline=None)
@given(LIVES)
def test_each_transaction_ends_once_whenever_brokers_are_killed(
    lives: list[tuple[list[Step], int, bool]],
) -> None:
    history = History()
    disk = SimDisk(len(lives))
    later_ms = 0
    for steps, operations, is_kill in lives:
        live(disk, history, steps, operations, is_kill=is_kill, later_ms=later_ms)
        later_ms += 1_000_000

    async def last(rig: TransactionRig) -> None:
        await asyncio.sleep(1)
        counts = Counter(rig.bodies())
        assert all(count == 1 for count in counts.values()), "before the last run"
        for body in history.ended:
            wanted = 1 if history.truth[body] == COMMIT else 0
            assert counts[body] == wanted, f"{body!r} was acknowledged"
        await settle_all(rig, history)
        check_outcome(Counter(rig.bodies()), history)

    run(last, disk, later_ms=later_ms, check_max=100)
    assert not check_store(disk).findings
