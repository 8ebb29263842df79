"""The fast path of commits has the outcome of the general path."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, Final

import pytest

from kourou.model.topic import TopicConfig
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import FLAG_RESPONSE, request
from kourou.protocol.frame import encode_frame
from kourou.protocol.sending import EndTransactionRequestHeader
from kourou.testing.lone_connection import LoneConnection
from tests.broker.transactions.transaction_rig import (
    COMMIT,
    ROLLBACK,
    UNKNOWN,
    Half,
    TransactionRig,
    run,
    run_killed,
)


def frame(
    half: Half, verdict: int = COMMIT, *, oneway: bool = True, opaque: int = 7, **fields: Any
) -> bytes:
    defaults: dict[str, Any] = {
        "producer_group": half.group,
        "tran_state_table_offset": half.queue_offset,
        "commit_log_offset": half.physical_offset,
        "commit_or_rollback": verdict,
        "msg_id": half.unique_key,
    }
    header = EndTransactionRequestHeader(**defaults | fields)
    command = request(RequestCode.END_TRANSACTION, header, oneway=oneway)
    command.opaque = opaque
    return encode_frame(command)


UNUSUAL: Final = (
    (b'Offset":"', b'Offset":" '), (b'Offset":"', b'Offset":"+'), (b'Offset":"', b'Offset":"0'),
    (b'Offset":"', b'Offset":"1_'), (b'Offset":"', b'Offset":"-'), (b'"code":37,', b'"code": 37,'),
    (b'Offset":"', b'Offset":"\xd9\xa3'), (b'"false"', b'"FALSE"'), (b'"8"', b'"08"'),
    (b'"flag":2', b'"flag":0'), (b'"flag":0', b'"flag":4'), (b'"opaque":', b'"opaque":-'),
    (b'"opaque":', b'"0paque":'),
    (b'Group":"', b'Group":"\\u0070'), (b'{"code', b'{"code'),
)  # fmt: skip


UNANSWERED_MAX: Final = 1_000


def answers_of(lone: LoneConnection) -> list[tuple[int, int, str | None, int]]:
    """Return the answers sorted by opaque: the two paths may send them in another order."""
    return sorted(((one.opaque, one.code, one.remark, one.flag) for one in lone.sent()), key=str)


def unusual_header(end: bytes, dice: Random) -> bytes:
    """Return the frame of an end with an unusual header."""
    header = end[8:].replace(*dice.choice(UNUSUAL))
    return (len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header


def reads(halves: list[Half], dice: Random) -> list[bytes]:
    """Return reads of commits: some plain, some unusual, some cut in two."""
    frames = [
        frame(
            half,
            dice.choice((COMMIT, COMMIT, COMMIT, ROLLBACK, UNKNOWN)),
            oneway=dice.random() < 0.5,
            opaque=number,
            producer_group=dice.choice(("p", "p", "p", "p", "other")),
            from_transaction_check=dice.random() < 0.2,
        )
        for number, half in enumerate(dice.choices(halves, k=120))
    ]
    frames = [unusual_header(one, dice) if dice.random() < 0.2 else one for one in frames]
    found = []
    while frames:
        count = dice.randrange(1, 20)
        data = b"".join(frames[:count])
        frames = frames[count:]
        at = dice.choice((len(data), dice.randrange(len(data))))
        found += [data[:at], data[at:]] if at < len(data) else [data]
    return found


@pytest.mark.parametrize("seed", range(8))
def test_random_ends_have_the_same_outcome_on_both_paths(seed: int) -> None:
    left: list[object] = []
    for is_fast in (True, False):

        async def test(rig: TransactionRig, is_fast: bool = is_fast) -> None:
            dice = Random(seed)
            sender = rig.sends.connect(is_fast=is_fast)
            immune: dict[str, Any] = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "9"}
            halves = [
                await rig.half(
                    b"%d" % n, queue_id=n % 4, KEYS=f"k{n}", UNIQ_KEY=f"{n:032X}",
                    lone=sender, **(immune if n % 7 == 0 else {}),
                )
                for n in range(60)
            ]  # fmt: skip
            lone = LoneConnection(
                rig.handlers,
                rig.sends.fast_path if is_fast else None,
                unanswered_requests_max=UNANSWERED_MAX,
            )
            for data in reads(halves, dice):
                lone.receive_bytes(data)
                await asyncio.sleep(dice.choice((0, 0, 0.02)))
            await asyncio.sleep(5)
            messages = sorted(
                (m.body, m.queue_id, m.sys_flag, m.prepared_transaction_offset, m.flag,
                 sorted(m.properties.items()), m.born_at_ms)
                for m in rig.stored()
            )  # fmt: skip
            ended = sorted(offset for op in rig.ops() for offset in op)
            stats = rig.broker.stats.store
            unanswered = lone.connection.unanswered
            assert unanswered.has_room(0, UNANSWERED_MAX), "every request is answered"
            assert not unanswered.has_room(0, UNANSWERED_MAX + 1), "no request is counted twice"
            left.append(
                (messages, ended, stats.put_messages - len(rig.ops()),
                 rig.transactions.counts.open_by_topic(), rig.progress()[0], answers_of(lone))
            )  # fmt: skip

        run(test)
    fast, general = left
    assert fast == general


async def plain_halves(rig: TransactionRig) -> tuple[LoneConnection, list[Half]]:
    """Return plain half messages for an existing queue, and a connection for their ends."""
    await rig.broker.topics.persist()
    await rig.sends.send(b"first")
    await rig.half(b"stays open")
    sender = rig.sends.connect(is_fast=True)
    halves = [
        await rig.half(b"%d" % n, UNIQ_KEY=f"{n:032X}", lone=sender) for n in range(5)
    ]  # fmt: skip
    return LoneConnection({}, rig.sends.fast_path), halves


def test_commits_that_cannot_be_stored_leave_their_transactions_open() -> None:
    async def test(rig: TransactionRig) -> None:
        lone, halves = await plain_halves(rig)
        rig.broker.disk.fail_after(0, OSError(28, "no space left"))
        lone.receive_bytes(b"".join(map(frame, halves)))
        await asyncio.sleep(1)
        assert rig.bodies() == [b"first"]
        lone.receive_bytes(b"".join(map(frame, halves)))
        await asyncio.sleep(10)
        assert len(rig.bodies()) == 6

    run(test)


def test_a_commit_being_stored_at_a_stop_gets_its_op_message() -> None:
    async def stopped(rig: TransactionRig) -> None:
        lone, halves = await plain_halves(rig)
        lone.receive_bytes(b"".join(map(frame, halves)))

    async def after(rig: TransactionRig) -> None:
        assert len(rig.bodies()) == 6
        assert rig.ops() == [[1, 2, 3, 4, 5]]

    run(after, run(stopped), later_ms=1_000)


@pytest.mark.parametrize("is_fast", [True, False])
def test_a_commit_for_a_deleted_topic_stays_open_until_the_topic_exists_again(
    is_fast: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(rig: TransactionRig) -> None:
        lone, (half, *_) = await plain_halves(rig)
        topic = rig.broker.topics.get("T")
        assert topic is not None
        rig.broker.topics.delete("T")
        if is_fast:
            lone.receive_bytes(frame(half))
            await asyncio.sleep(1)
            assert "transaction.end_refused" in caplog.text
        answer = await rig.end(half, COMMIT)
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert "create the topic and commit again, or roll back" in (answer.remark or "")
        assert rig.bodies() == [b"first"]
        rig.broker.topics.put(topic)
        assert (await rig.end(half, COMMIT)).code == ResponseCode.SUCCESS
        assert rig.bodies() == [b"0", b"first"]

    run(test)


@pytest.mark.parametrize("is_fast", [True, False])
def test_a_commit_for_a_removed_queue_goes_to_an_existing_one(
    is_fast: bool,
) -> None:
    async def before(rig: TransactionRig) -> None:
        await plain_halves(rig)
        await rig.sends.send(b"third", queue_id=3)  # creates the queue for commits
        sender = rig.sends.connect(is_fast=True)
        first, half = [
            await rig.half(body, queue_id=3, UNIQ_KEY=body.decode() * 32, lone=sender)
            for body in (b"A", b"B")
        ]
        assert (await rig.end(first, COMMIT)).code == ResponseCode.SUCCESS
        rig.broker.topics.put(TopicConfig("T", 2, 2))
        if is_fast:
            LoneConnection({}, rig.sends.fast_path).receive_bytes(frame(half))
            await asyncio.sleep(1)
        else:
            assert (await rig.end(half, COMMIT)).code == ResponseCode.SUCCESS
        assert [(one.queue_id, one.body) for one in rig.stored()] == QUEUES

    async def after(rig: TransactionRig) -> None:
        rig.broker.topics.put(TopicConfig("T", 2, 2))
        await asyncio.sleep(1)
        assert rig.transactions.counts.open_by_topic() == {"T": 6}  # neither commit was stored

    run(after, run_killed(before))


QUEUES: Final = [(0, b"first"), (1, b"B"), (3, b"third"), (3, b"A")]


def answered(halves: list[Half]) -> bytes:
    """Return one read of commits that request answers, with opaques from 1."""
    return b"".join(
        frame(half, oneway=False, opaque=number) for number, half in enumerate(halves, 1)
    )


def numbered(code: ResponseCode, remark: str | None = None) -> list[tuple[int, int, Any, int]]:
    return [(number, code, remark, FLAG_RESPONSE) for number in range(1, 6)]


def test_answered_commits_are_answered_in_one_write_when_they_are_stored() -> None:
    async def test(rig: TransactionRig) -> None:
        lone, halves = await plain_halves(rig)
        rig.broker.flusher.stall()
        lone.receive_bytes(answered(halves))
        await asyncio.sleep(0.1)
        assert not lone.sent(), "the sync has not ended"
        rig.broker.flusher.release()
        await asyncio.sleep(0.1)
        assert answers_of(lone) == numbered(ResponseCode.SUCCESS)
        assert len(lone.transport.writes) == 1
        assert len(rig.bodies()) == 6

    run(test)


def test_answered_commits_with_a_late_sync_are_answered_once() -> None:
    async def test(rig: TransactionRig) -> None:
        lone, halves = await plain_halves(rig)
        rig.broker.flusher.stall()
        lone.receive_bytes(answered(halves))
        await asyncio.sleep(10)
        late = answers_of(lone)
        [reason] = {remark for _, _, remark, _ in late}
        assert "the sync did not end within" in (reason or "")
        assert late == numbered(ResponseCode.FLUSH_DISK_TIMEOUT, reason)
        rig.broker.flusher.release()
        await asyncio.sleep(10)
        assert answers_of(lone) == late
        assert len(rig.bodies()) == 6

    run(test)


def test_answered_commits_that_cannot_be_stored_are_refused_and_can_be_retried() -> None:
    async def test(rig: TransactionRig) -> None:
        lone, halves = await plain_halves(rig)
        rig.broker.disk.fail_after(0, OSError(28, "no space left"))
        lone.receive_bytes(answered(halves))
        await asyncio.sleep(1)
        refused = lone.sent()
        assert [one.code for one in refused] == [ResponseCode.SERVICE_NOT_AVAILABLE] * 5
        assert {bool(one.remark) for one in refused} == {True}
        assert rig.bodies() == [b"first"]
        lone.transport.writes.clear()
        lone.receive_bytes(answered(halves))
        await asyncio.sleep(10)
        assert answers_of(lone) == numbered(ResponseCode.SUCCESS)
        assert len(rig.bodies()) == 6

    run(test)


@pytest.mark.parametrize("is_topic_gone", [False, True])
def test_answered_commits_that_are_left_to_the_general_path_are_answered_by_it(
    is_topic_gone: bool,
) -> None:
    async def test(rig: TransactionRig) -> None:
        _, halves = await plain_halves(rig)
        if is_topic_gone:
            rig.broker.topics.delete("T")
        else:
            rig.broker.topics.put(TopicConfig("T", 2, 2))
        lone = LoneConnection({}, rig.sends.fast_path, unanswered_requests_max=UNANSWERED_MAX)
        lone.receive_bytes(answered(halves[:1]))
        await asyncio.sleep(1)
        [answer] = lone.sent()
        expected = ResponseCode.TOPIC_NOT_EXIST if is_topic_gone else ResponseCode.SUCCESS
        assert (answer.opaque, answer.code) == (1, expected)
        assert (b"0" in rig.bodies()) == (not is_topic_gone)
        assert lone.connection.unanswered.has_room(0, UNANSWERED_MAX)

    run(test)


def test_commits_beyond_the_unanswered_requests_are_answered_busy_and_stay_open() -> None:
    async def test(rig: TransactionRig) -> None:
        _, halves = await plain_halves(rig)
        lone = LoneConnection(rig.handlers, rig.sends.fast_path, unanswered_requests_max=2)
        rig.broker.flusher.stall()
        lone.receive_bytes(answered(halves))
        await asyncio.sleep(0.1)
        assert [(one.opaque, one.code) for one in lone.sent()] == [
            (number, ResponseCode.SYSTEM_BUSY) for number in (3, 4, 5)
        ]
        rig.broker.flusher.release()
        await asyncio.sleep(1)
        lone.receive_bytes(b"".join(frame(half) for half in halves[2:]))
        await asyncio.sleep(1)
        assert len(rig.bodies()) == 6

    run(test)


def test_answer_is_byte_for_byte_that_of_the_general_path() -> None:
    writes: list[list[bytes]] = []
    for is_fast in (True, False):

        async def test(rig: TransactionRig, is_fast: bool = is_fast) -> None:
            _, halves = await plain_halves(rig)
            lone = LoneConnection(rig.handlers, rig.sends.fast_path if is_fast else None)
            for opaque in (0, 7, -1, 2**31 - 1, -(2**31)):
                lone.receive_bytes(frame(halves.pop(), oneway=False, opaque=opaque))
                await asyncio.sleep(0.1)
            writes.append(lone.transport.writes)

        run(test)
    assert writes[0] == writes[1]
    assert len(writes[0]) == 5
