"""END_TRANSACTION: records, refusals, and repeated ends."""

from __future__ import annotations

import asyncio

import pytest

from kourou.broker.transactions.transaction_counts import FILE_NAME, parse_transaction_counts
from kourou.model.sysflag import TRANSACTION_COMMIT
from kourou.protocol.codes import ResponseCode
from tests.broker.transactions.transaction_rig import (
    COMMIT,
    ROLLBACK,
    UNKNOWN,
    Half,
    TransactionRig,
    checked_half,
    run,
    run_killed,
)


def test_a_half_message_is_invisible_until_it_is_committed() -> None:
    async def test(rig: TransactionRig) -> None:
        half = await rig.half(b"hello", queue_id=2, TAGS="a", KEYS="k")
        assert not rig.bodies()
        [stored] = rig.halves()
        assert (stored.properties["REAL_TOPIC"], stored.properties["REAL_QID"]) == ("T", "2")
        assert stored.properties["__transactionId__"] == half.unique_key
        assert stored.sys_flag & 0xC == 0

        assert (await rig.end(half, COMMIT)).code == ResponseCode.SUCCESS
        [message] = rig.stored()
        assert (message.body, message.queue_id, message.tags) == (b"hello", 2, "a")
        assert message.sys_flag & 0xC == TRANSACTION_COMMIT
        assert message.prepared_transaction_offset == half.physical_offset
        assert message.born_at_ms == stored.born_at_ms
        assert message.properties["TRAN_MSG"] == "true"
        assert not {"REAL_TOPIC", "REAL_QID"} & message.properties.keys()

    run(test)


def test_a_rolled_back_message_is_neither_delivered_nor_checked() -> None:
    async def test(rig: TransactionRig) -> None:
        producer = rig.connect()
        half = await rig.half()
        assert (await rig.end(half, ROLLBACK)).code == ResponseCode.SUCCESS
        assert rig.ops() == [[0]]
        for _ in range(20):
            await rig.round(after_s=30)
        assert not rig.bodies()
        assert not producer.sent

    run(test)


def test_ends_are_buffered_for_three_seconds_or_four_kilobytes() -> None:
    async def test(rig: TransactionRig) -> None:
        halves = [await rig.half() for _ in range(1_500)]
        for half in halves[:3]:
            await rig.end(half, COMMIT)
        await asyncio.sleep(2.5)
        assert not rig.ops()
        await asyncio.sleep(1)
        assert rig.ops() == [[0, 1, 2]]
        peers = [rig.begin_end(half, COMMIT) for half in halves[3:]]
        await asyncio.sleep(0.5)
        assert all(peer.sent[0].code == 0 for peer in peers)
        assert len(rig.ops()) > 1
        assert all(len("".join(f"{n}," for n in op)) <= 4_096 for op in rig.ops())
        await asyncio.sleep(3)
        assert sorted(offset for op in rig.ops() for offset in op) == list(range(1_500))
        assert len(rig.bodies()) == 1_500

    run(test)


def test_a_repeated_end_is_stored_once() -> None:
    async def test(rig: TransactionRig) -> None:
        half = await rig.half()
        peers = [rig.begin_end(half, COMMIT) for _ in range(5)]
        peers.append(rig.begin_end(half, ROLLBACK))
        await asyncio.sleep(1)
        assert [peer.sent[0].code for peer in peers] == [0, 0, 0, 0, 0, 1]
        assert "ended already (COMMITTED)" in (peers[-1].sent[0].remark or "")
        await asyncio.sleep(10)
        assert (await rig.end(half, COMMIT)).code == ResponseCode.SUCCESS
        assert (await rig.end(half, COMMIT, is_checked=True)).code == ResponseCode.SUCCESS
        assert len(rig.bodies()) == 1
        assert rig.ops() == [[0]]

        other = await rig.half()
        assert (await rig.end(other, ROLLBACK)).code == ResponseCode.SUCCESS
        assert (await rig.end(other, ROLLBACK)).code == ResponseCode.SUCCESS
        answer = await rig.end(other, COMMIT)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert len(rig.bodies()) == 1

    run(test)


def test_an_end_of_a_wrong_record_is_refused_with_javas_codes() -> None:
    async def test(rig: TransactionRig) -> None:
        half = await rig.half()
        plain = await rig.sends.send(b"plain")
        offset = int(plain.ext_fields["msgId"][16:], 16)
        answers = [
            await rig.end(half, COMMIT, commit_log_offset=99_999_999),
            await rig.end(half, COMMIT, commit_log_offset=half.physical_offset + 1),
            await rig.end(half, COMMIT, commit_log_offset=offset),
            await rig.end(half, COMMIT, producer_group="other"),
            await rig.end(half, ROLLBACK, tran_state_table_offset=7),
        ]
        assert [(answer.code, answer.remark) for answer in answers] == [
            (1, "Find prepared transaction message failed"),
            (1, "Find prepared transaction message failed"),
            (1, "Find prepared transaction message failed"),
            (1, "The producer group wrong"),
            (1, "The transaction state table offset wrong"),
        ]
        assert rig.bodies() == [b"plain"]
        assert (await rig.end(half, COMMIT)).code == ResponseCode.SUCCESS

    run(test)


def test_neither_commit_nor_rollback_changes_nothing() -> None:
    async def test(rig: TransactionRig) -> None:
        half = await rig.half()
        for verdict in (UNKNOWN, 4, 99):
            assert (await rig.end(half, verdict)).code == ResponseCode.SUCCESS
        assert not rig.bodies()
        assert not rig.begin_end(half, UNKNOWN, oneway=True).sent
        assert (await rig.end(half, COMMIT)).code == ResponseCode.SUCCESS
        assert len(rig.bodies()) == 1

    run(test)


def test_after_an_immunity_time_of_its_own_only_the_check_ends_a_transaction() -> None:
    async def test(rig: TransactionRig) -> None:
        producer = rig.connect()
        soon = await rig.half(b"soon", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
        late = await rig.half(b"late", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
        await asyncio.sleep(50)
        assert (await rig.end(soon, COMMIT)).code == ResponseCode.SUCCESS
        await asyncio.sleep(20)
        assert (await rig.end(late, COMMIT)).code == ResponseCode.ILLEGAL_OPERATION
        assert (await rig.end(late, ROLLBACK)).code == ResponseCode.ILLEGAL_OPERATION
        await rig.round()
        [check] = producer.sent
        asked = checked_half(check)
        assert (await rig.end(asked, COMMIT, is_checked=True)).code == ResponseCode.SUCCESS
        assert rig.bodies() == [b"late", b"soon"]

    run(test)


@pytest.mark.parametrize("properties", [{"DELAY": "3"}, {"TIMER_DELAY_SEC": "3"}])
def test_a_half_message_is_not_delayed(properties: dict[str, str]) -> None:
    async def test(rig: TransactionRig) -> None:
        text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
        answer = await rig.sends.send(b"x", f"TRAN_MSG\x01true\x02PGROUP\x01p\x02{text}")
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert not rig.halves()

    run(test)


def test_a_commit_that_could_not_be_stored_leaves_the_transaction_open() -> None:
    async def test(rig: TransactionRig) -> None:
        producer = rig.connect()
        half = await rig.half()
        rig.broker.disk.fail_after(0, OSError(28, "no space left"))
        answer = await rig.end(half, COMMIT)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert not rig.bodies()
        await asyncio.sleep(31)
        await rig.round()
        [check] = producer.sent
        assert (await rig.end(checked_half(check), COMMIT)).code == ResponseCode.SUCCESS
        assert (await rig.end(half, COMMIT)).code == ResponseCode.SUCCESS
        assert len(rig.bodies()) == 1

    run(test)


def test_statistics_count_the_half_message_and_then_the_message() -> None:
    async def test(rig: TransactionRig) -> None:
        await rig.end(await rig.half(), COMMIT)
        await rig.half()
        counts = rig.transactions.counts
        assert counts.open_by_topic() == {"T": 1}
        await asyncio.sleep(5)
        stats = rig.broker.stats
        assert stats.store.put_messages == 3

    run(test)


def test_refused_half_messages_are_not_stored() -> None:
    async def test(rig: TransactionRig) -> None:
        answer = await rig.sends.send(b"x", "TRAN_MSG\x01true\x02PGROUP\x01p\x02")
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "sending transaction message is forbidden" in (answer.remark or "")
        assert not rig.halves()
        assert (await rig.sends.send(b"x")).code == ResponseCode.SUCCESS

    run(test, reject_transaction_message=True)


def test_a_half_message_without_a_group_gets_that_of_the_send() -> None:
    async def test(rig: TransactionRig) -> None:
        answer = await rig.sends.send(b"x", "TRAN_MSG\x01true\x02", producer_group="mine")
        offset = int(answer.ext_fields["msgId"][16:], 16)
        half = Half(0, offset, "", "", "mine")
        assert (await rig.end(half, COMMIT)).code == ResponseCode.SUCCESS
        assert rig.bodies() == [b"x"]

    run(test)


def test_counts_of_open_half_messages_are_kept_in_javas_file() -> None:
    async def test(rig: TransactionRig) -> None:
        await rig.half()
        await rig.end(await rig.half(), COMMIT)
        await rig.half(topic="Gone")
        await rig.end((await rig.half(topic="Gone")), ROLLBACK)
        await rig.transactions.persist_counts()
        _, counts = parse_transaction_counts(text(rig))
        assert {topic: count for topic, (count, _) in counts.items()} == {"T": 1, "Gone": 1}

        rig.transactions.counts.add("Gone", -1)
        rig.broker.topics.delete("Gone")
        await rig.transactions.persist_counts()
        assert parse_transaction_counts(text(rig))[1].keys() == {"T"}

    def text(rig: TransactionRig) -> bytes:
        disk = rig.broker.disk
        return disk.read(FILE_NAME, 0, disk.size(FILE_NAME))

    run(test)


@pytest.mark.parametrize(("verdict", "stored"), [(COMMIT, [b"x"]), (ROLLBACK, [])])
def test_an_end_whose_sync_is_late_is_not_answered_success_before_it_is_synced(
    verdict: int, stored: list[bytes]
) -> None:
    async def test(rig: TransactionRig) -> None:
        producer = rig.connect()
        half = await rig.half()
        rig.broker.flusher.stall()
        first = await rig.end(half, verdict)
        again = await rig.end(half, verdict)
        assert (first.code, again.code) == (ResponseCode.FLUSH_DISK_TIMEOUT,) * 2
        assert "the sync did not end within" in (first.remark or "")
        rig.broker.flusher.release()
        await asyncio.sleep(1)
        assert (await rig.end(half, verdict)).code == ResponseCode.SUCCESS
        for _ in range(5):
            await rig.round(after_s=30)
        assert not producer.sent
        assert rig.bodies() == stored

    run(test)


def test_an_end_whose_late_sync_fails_is_not_answered_success() -> None:
    async def test(rig: TransactionRig) -> None:
        half = await rig.half()
        rig.broker.flusher.stall()
        assert (await rig.end(half, COMMIT)).code == ResponseCode.FLUSH_DISK_TIMEOUT
        rig.broker.flusher.fail_next(OSError(5, "I/O error"))
        rig.broker.flusher.release()
        await asyncio.sleep(1)
        assert (await rig.end(half, COMMIT)).code == ResponseCode.SERVICE_NOT_AVAILABLE

    run_killed(test)


def test_a_late_resumption_of_checks_is_not_answered_success() -> None:
    async def test(rig: TransactionRig) -> None:
        half = await rig.half()
        rig.broker.flusher.stall()
        assert (await rig.resume(half.msg_id)).code == ResponseCode.FLUSH_DISK_TIMEOUT
        rig.broker.flusher.release()
        await asyncio.sleep(1)
        assert (await rig.resume(half.msg_id)).code == ResponseCode.SUCCESS

    run(test)
