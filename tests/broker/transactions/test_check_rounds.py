"""Check rounds: times and number of checks, choice of the producer, given-up messages."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from kourou.model.topic import TRANS_CHECK_MAX_TIME_TOPIC
from kourou.protocol.codes import ResponseCode
from kourou.protocol.record.decode import decode_message
from kourou.testing.clock import LoopClock
from kourou.testing.inspection import op_writer_of
from tests.broker.transactions.transaction_rig import (
    COMMIT,
    ROLLBACK,
    Half,
    TransactionRig,
    checked_half,
    run,
)

HOUR_MS = 3_600_000


def test_a_producer_is_checked_after_its_timeout_and_then_each_round() -> None:
    async def test(rig: TransactionRig) -> None:
        producer = rig.connect()
        half = await rig.half(b"hello", TAGS="a", KEYS="k")
        await rig.round(after_s=5.9)
        assert not producer.sent
        await rig.round(after_s=0.2)
        [check] = producer.sent
        asked = checked_half(check)
        assert asked.unique_key == half.unique_key
        assert asked.queue_offset == 1
        shown = decode_message(check.body)
        assert (shown.topic, shown.queue_id, shown.body, shown.tags) == ("T", 0, b"hello", "a")
        assert (shown.queue_offset, shown.physical_offset) == (1, asked.physical_offset)
        assert shown.properties["TRANSACTION_CHECK_TIMES"] == "1"
        assert check.ext_fields["bname"] == "broker-a"
        await rig.round(after_s=30)
        assert len(producer.sent) == 2
        again = checked_half(producer.sent[1])
        assert (await rig.end(again, COMMIT, is_checked=True)).code == ResponseCode.SUCCESS
        await rig.round(after_s=30)
        assert len(producer.sent) == 2
        [message] = rig.stored()
        assert message.properties["TRANSACTION_CHECK_TIMES"] == "2"
        assert "TRAN_PREPARED_QUEUE_OFFSET" not in message.properties

    run(test)


def test_a_message_is_given_up_and_kept_after_fifteen_checks() -> None:
    async def test(rig: TransactionRig) -> None:
        producer = rig.connect()
        await rig.half(b"hello")
        for _ in range(15):
            await rig.round(after_s=30)
        assert len(producer.sent) == 15
        assert not rig.given_up()
        await rig.round(after_s=30)
        [kept] = rig.given_up()
        assert (kept.body, kept.properties["REAL_TOPIC"]) == (b"hello", "T")
        assert kept.properties["TRANSACTION_CHECK_TIMES"] == "15"
        assert rig.broker.topics.is_saved(TRANS_CHECK_MAX_TIME_TOPIC)
        for _ in range(10):
            await rig.round(after_s=30)
        assert len(producer.sent) == 15
        assert len(rig.given_up()) == 1
        assert not rig.bodies()
        head = rig.progress()[0]
        assert head == len(rig.halves())

    run(test)


def test_checks_count_without_a_connected_producer() -> None:
    async def test(rig: TransactionRig) -> None:
        await rig.half()
        for _ in range(3):
            await rig.round(after_s=30)
        assert len(rig.given_up()) == 1

    run(test, check_max=2)


def test_a_message_beyond_the_retention_time_is_given_up_without_a_check() -> None:
    async def test(rig: TransactionRig) -> None:
        await rig.half()

    async def later(rig: TransactionRig) -> None:
        await rig.round(after_s=3_600)  # the age clock follows a jump after an hour
        assert len(rig.given_up()) == 1
        await rig.round(after_s=30)
        assert len(rig.halves()) == 1

    run(later, run(test), later_ms=73 * HOUR_MS)


@pytest.mark.parametrize("jump_ms", [1_000, HOUR_MS, 73 * HOUR_MS])
def test_a_clock_that_was_ahead_for_a_second_delays_no_check_and_gives_nothing_up(
    jump_ms: int,
) -> None:
    async def test(rig: TransactionRig) -> None:
        producer, clock = rig.connect(), cast(LoopClock, rig.broker.clock)
        before = await rig.half(b"before")
        clock.step(jump_ms)
        ahead = await rig.half(b"ahead")
        await rig.round(after_s=1)
        assert not producer.sent
        clock.step(-jump_ms)
        after = await rig.half(b"after")
        await rig.round(after_s=30)
        await rig.round(after_s=30)
        asked = {checked_half(check).unique_key for check in producer.sent}
        assert asked == {half.unique_key for half in (before, ahead, after)}
        for _ in range(2):
            sent = len(producer.sent)
            await rig.round(after_s=30)
            assert len(producer.sent) == sent + 3
        assert not rig.given_up()

    run(test)


@pytest.mark.parametrize("back_ms", [HOUR_MS, 73 * HOUR_MS])
def test_a_clock_that_was_behind_for_a_second_brings_no_check_forward(back_ms: int) -> None:
    async def test(rig: TransactionRig) -> None:
        producer, clock = rig.connect(), cast(LoopClock, rig.broker.clock)
        await rig.half(b"before")
        clock.step(-back_ms)
        await rig.half(b"behind")
        await rig.round(after_s=1)
        clock.step(back_ms)
        await rig.round(after_s=4)
        assert not producer.sent
        await rig.round(after_s=2)
        assert len(producer.sent) == 2
        assert not rig.given_up()

    run(test)


def test_a_producer_whose_clock_is_days_behind_is_checked() -> None:
    async def test(rig: TransactionRig) -> None:
        producer = rig.connect()
        await rig.half(born_at_ms=rig.broker.clock.now_ms() - 73 * HOUR_MS)
        await rig.round(after_s=1)
        await rig.round(after_s=10)
        assert len(producer.sent) == 1
        assert not rig.given_up()

    run(test)


def test_an_immunity_time_elapses_whatever_the_wall_clock() -> None:
    async def test(rig: TransactionRig) -> None:
        producer, clock = rig.connect(), cast(LoopClock, rig.broker.clock)
        clock.step(HOUR_MS)
        half = await rig.half(CHECK_IMMUNITY_TIME_IN_SECONDS="60")
        clock.step(-HOUR_MS)
        for _ in range(3):
            await rig.round(after_s=30)
        assert len(producer.sent) == 0
        clock.step(HOUR_MS)
        assert (await rig.end(half, COMMIT)).code == ResponseCode.SUCCESS
        clock.step(-HOUR_MS)
        other = await rig.half(CHECK_IMMUNITY_TIME_IN_SECONDS="60")
        clock.step(HOUR_MS)
        await rig.round(after_s=1)
        assert not producer.sent
        assert (await rig.end(other, COMMIT)).code == ResponseCode.SUCCESS

    run(test)


def test_an_immunity_time_delays_only_its_own_check() -> None:
    async def test(rig: TransactionRig) -> None:
        producer = rig.connect()
        immune = await rig.half(b"immune", CHECK_IMMUNITY_TIME_IN_SECONDS="100")
        other = await rig.half(b"other")
        await rig.round(after_s=30)
        assert [checked_half(one).unique_key for one in producer.sent] == [other.unique_key]
        assert (await rig.end(immune, COMMIT)).code == ResponseCode.SUCCESS
        late = await rig.half(b"late", CHECK_IMMUNITY_TIME_IN_SECONDS="100")
        await rig.round(after_s=99)
        assert late.unique_key not in {checked_half(one).unique_key for one in producer.sent}
        await rig.round(after_s=2)
        assert checked_half(producer.sent[-1]).unique_key in {late.unique_key, other.unique_key}
        keys = [checked_half(one).unique_key for one in producer.sent]
        assert keys.count(late.unique_key) == 1

    run(test)


@pytest.mark.parametrize("text", ["1", "soon", "-5", ""])
def test_an_immunity_time_below_the_timeout_means_the_timeout(text: str) -> None:
    async def test(rig: TransactionRig) -> None:
        producer = rig.connect()
        await rig.half(CHECK_IMMUNITY_TIME_IN_SECONDS=text)
        await rig.round(after_s=5)
        assert not producer.sent
        await rig.round(after_s=2)
        assert len(producer.sent) == 1

    run(test)


def test_a_clock_ahead_does_not_bring_the_check_forward() -> None:
    async def test(rig: TransactionRig) -> None:
        producer = rig.connect()
        await rig.half(born_at_ms=rig.broker.clock.now_ms() + HOUR_MS)
        await rig.round(after_s=5)
        assert not producer.sent
        await rig.round(after_s=2)
        assert len(producer.sent) == 1

    run(test)


def test_checks_rotate_among_the_producers_of_the_group_only() -> None:
    async def test(rig: TransactionRig) -> None:
        peers = [rig.connect("p", 40_000 + n) for n in range(3)]
        stranger = rig.connect("q", 41_000)
        for _ in range(6):
            await rig.half()
        await rig.round(after_s=30)
        assert [len(peer.sent) for peer in peers] == [2, 2, 2]
        assert not stranger.sent

    run(test)


def test_an_end_that_crosses_a_check_commits_one_message() -> None:
    async def test(rig: TransactionRig) -> None:
        producer = rig.connect()
        half = await rig.half()
        await asyncio.sleep(30)
        rig.broker.flusher.stall()
        checking = asyncio.create_task(rig.transactions.check())
        await asyncio.sleep(1)
        late = [rig.begin_end(half, COMMIT) for _ in range(3)]
        await asyncio.sleep(1)
        assert not any(peer.sent for peer in late)
        rig.broker.flusher.release()
        await checking
        await asyncio.sleep(1)
        assert [peer.sent[0].code for peer in late] == [0, 0, 0]
        asked = checked_half(producer.sent[0])
        assert (await rig.end(asked, COMMIT, is_checked=True)).code == ResponseCode.SUCCESS
        assert (await rig.end(asked, ROLLBACK, is_checked=True)).code == ResponseCode.SYSTEM_ERROR
        for _ in range(5):
            await rig.round(after_s=30)
        assert len(rig.bodies()) == 1
        assert len(producer.sent) == 1

    run(test)


def test_a_late_end_after_checks_ends_the_transaction_once() -> None:
    async def test(rig: TransactionRig) -> None:
        producer = rig.connect()
        half = await rig.half()
        for _ in range(3):
            await rig.round(after_s=30)
        checks = [checked_half(one) for one in producer.sent]
        assert (await rig.end(half, COMMIT)).code == ResponseCode.SUCCESS
        for check in checks:
            answer = await rig.end(check, COMMIT, is_checked=True)
            assert answer.code == ResponseCode.SUCCESS
        await asyncio.sleep(4)
        assert len(rig.bodies()) == 1
        assert {0, 1, 2, 3} <= {offset for op in rig.ops() for offset in op}

    run(test)


def test_a_commit_after_the_message_was_given_up_is_stored_once() -> None:
    async def test(rig: TransactionRig) -> None:
        half = await rig.half()
        for _ in range(2):
            await rig.round(after_s=30)
        assert len(rig.given_up()) == 1
        for _ in range(2):
            assert (await rig.end(half, COMMIT)).code == ResponseCode.SUCCESS
        assert len(rig.bodies()) == 1

    run(test, check_max=1)


def test_checks_of_a_given_up_message_can_be_resumed() -> None:
    async def test(rig: TransactionRig) -> None:
        producer = rig.connect()
        half = await rig.half(b"hello")
        for _ in range(2):
            await rig.round(after_s=30)
        [kept] = rig.given_up()
        assert (await rig.resume(kept.offset_msg_id)).code == ResponseCode.SUCCESS
        await rig.round(after_s=30)
        asked = checked_half(producer.sent[-1])
        assert (await rig.end(asked, COMMIT, is_checked=True)).code == ResponseCode.SUCCESS
        assert (await rig.end(half, COMMIT)).code == ResponseCode.SUCCESS
        assert rig.bodies() == [b"hello"]
        answer = await rig.resume(kept.offset_msg_id)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "has ended" in (answer.remark or "")

    run(test, check_max=1)


def test_a_record_that_is_not_a_half_message_is_not_resumed() -> None:
    async def test(rig: TransactionRig) -> None:
        plain = await rig.sends.send(b"plain")
        answer = await rig.resume(plain.ext_fields["msgId"])
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "no half message" in (answer.remark or "")
        assert (await rig.resume("nonsense")).code == ResponseCode.INVALID_PARAMETER
        half = await rig.half()
        assert (await rig.resume(half.msg_id)).code == ResponseCode.SUCCESS
        assert (await rig.end(half, COMMIT)).code == ResponseCode.SUCCESS
        assert rig.bodies() == [b"plain", b"x"]

    run(test)


def test_an_idle_broker_writes_nothing_and_sets_no_timer() -> None:
    async def test(rig: TransactionRig) -> None:
        await rig.end(await rig.half(), COMMIT)
        await asyncio.sleep(10)
        written = rig.broker.store.reader.written_position
        for _ in range(10):
            await rig.round(after_s=30)
        assert rig.broker.store.reader.written_position == written
        assert not op_writer_of(rig.transactions).is_scheduled

    run(test)


def test_a_check_that_cannot_be_stored_is_retried_in_the_next_round() -> None:
    async def test(rig: TransactionRig) -> None:
        producer = rig.connect()
        await rig.half()
        await asyncio.sleep(30)
        rig.broker.disk.fail_after(0, OSError(28, "no space left"))
        await rig.round()
        assert not producer.sent
        await rig.round(after_s=30)
        assert len(producer.sent) == 1

    run(test)


def test_many_half_messages_are_checked_in_one_round() -> None:
    async def test(rig: TransactionRig) -> None:
        producer = rig.connect()
        halves: list[Half] = [await rig.half(b"%d" % n) for n in range(200)]
        for half in halves[::3]:
            await rig.end(half, COMMIT)
        await rig.round(after_s=30)
        assert len(producer.sent) == 200 - len(halves[::3])
        for check in producer.sent:
            await rig.end(checked_half(check), ROLLBACK, is_checked=True)
        await rig.round(after_s=30)
        await asyncio.sleep(4)
        assert len(rig.bodies()) == len(halves[::3])
        head, op = rig.progress()
        assert head == len(rig.halves())
        assert op == len(rig.ops())

    run(test)


def test_unused_queues_have_no_committed_progress() -> None:
    async def test(rig: TransactionRig) -> None:
        await rig.round()
        assert rig.progress() == (None, None)
        half = await rig.half(b"hello")
        await rig.end(half, ROLLBACK)
        await rig.round(after_s=30)
        assert rig.progress()[0] == 1

    run(test)
