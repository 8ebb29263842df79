"""The send ledger: one entry for each try of each message, and visible gaps where one is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

import kourou.blocking
from kourou.client.config import ProducerConfig
from kourou.client.instance import ClientInstance
from kourou.client.sending.ledger_destinations import LedgerFiles
from kourou.client.sending.ledger_entry import (
    EntryKind,
    EntryOutcome,
    LedgerEntry,
    decode_entries,
    encode_entries,
)
from kourou.client.sending.producer import Producer
from kourou.client.sending.send_ledger import SendLedger
from kourou.client.sending.transaction import TransactionState
from kourou.client.sending.transaction_producer import TransactionProducer
from kourou.errors import (
    ConfigError,
    InvalidTopicError,
    KourouError,
    MessageIllegalError,
    RequestTimeoutError,
    UsageError,
)
from kourou.model.message import Message
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual
from kourou.testing.process import Serving
from kourou.testing.recording import TOPIC, Recording, recording

STORED, UNKNOWN = EntryOutcome.STORED, EntryOutcome.UNKNOWN
REFUSED, BEGUN = EntryOutcome.REFUSED, EntryOutcome.BEGUN


class Memory:
    """A destination that can be made to fail."""

    def __init__(self) -> None:
        self.entries: list[LedgerEntry] = []
        self.writes: list[int] = []
        self.error: Exception | None = None
        self.is_open = False

    async def open(self, client: ClientInstance) -> None:
        self.is_open = True

    async def write(self, entries: Sequence[LedgerEntry]) -> None:
        if self.error is not None:
            raise self.error
        self.writes.append(len(entries))
        self.entries += entries

    async def close(self) -> None:
        self.is_open = False

    def sends(self) -> list[LedgerEntry]:
        """Return the entries of sends."""
        return [one for one in self.entries if one.kind is EntryKind.SEND]


def producer(w: Recording, ledger: SendLedger, config: ProducerConfig | None = None) -> Producer:
    cluster = w.cluster
    return Producer(
        "shop", cluster.namesrv_addr, config=config, hooks=[ledger], runtime=cluster.runtime
    )


def missing(entries: Sequence[LedgerEntry]) -> set[int]:
    """Return the numbers without an entry."""
    found = {one.seq for one in entries}
    return set(range(1, max(found) + 1)) - found


def test_each_send_is_recorded_with_its_position_and_times() -> None:
    async def main() -> None:
        async with recording() as w:
            memory = Memory()
            ledger = SendLedger(memory)
            async with producer(w, ledger) as shop:
                now_ms = w.cluster.runtime.clock.now_ms()
                receipt = await shop.send(Message(TOPIC, b"1"), sharding_key="bob")
            opened, sent, closed = memory.entries
            assert (opened.kind, closed.kind) == (EntryKind.OPENED, EntryKind.CLOSED)
            assert [one.seq for one in memory.entries] == [1, 2, 3]
            assert {one.run for one in memory.entries} == {ledger.run}
            assert sent == LedgerEntry(
                run=ledger.run,
                seq=2,
                kind=EntryKind.SEND,
                begun_ms=sent.begun_ms,
                ended_ms=sent.ended_ms,
                outcome=STORED,
                last_seq=2,
                msg_id=receipt.msg_id,
                topic=TOPIC,
                group="shop",
                broker_name=receipt.queue.broker_name,
                queue_id=receipt.queue.queue_id,
                queue_offset=receipt.queue_offset,
                attempt=1,
                sharding_key="bob",
            )
            assert now_ms <= sent.begun_ms <= sent.ended_ms <= now_ms + 1_000
            assert not memory.is_open
            assert ledger.dropped == 0

    run_virtual(main())


def test_batches_and_background_and_lingering_sends_are_recorded_by_message() -> None:
    async def main() -> None:
        async with recording() as w:
            memory = Memory()
            config = ProducerConfig(linger_ms=20)
            async with producer(w, SendLedger(memory), config) as shop:
                receipts = await shop.send_batch([Message(TOPIC, b"a"), Message(TOPIC, b"b")])
                futures = [await shop.submit(Message(TOPIC, b"%d" % n)) for n in range(10)]
                receipts += await asyncio.gather(*futures)
            assert not missing(memory.entries)
            stored = {one.msg_id: one for one in memory.sends() if one.outcome is STORED}
            assert len(stored) == 12
            for one in receipts:
                entry = stored[one.msg_id]
                assert (entry.queue_id, entry.queue_offset) == (
                    one.queue.queue_id,
                    one.queue_offset,
                )

    run_virtual(main())


def test_one_way_send_is_unknown_because_it_has_no_answer() -> None:
    async def main() -> None:
        async with recording() as w:
            memory = Memory()
            async with producer(w, SendLedger(memory)) as shop:
                await shop.send_oneway(Message(TOPIC, b"1"))
            [sent] = memory.sends()
            assert (sent.outcome, sent.is_oneway, sent.queue_offset) == (UNKNOWN, True, None)

    run_virtual(main())


def test_refusal_has_its_code_and_a_lost_answer_is_unknown() -> None:
    async def main() -> None:
        async with recording(max_message_size_bytes=1_000) as w:
            memory = Memory()
            async with producer(w, SendLedger(memory)) as shop:
                with pytest.raises(MessageIllegalError):
                    await shop.send(Message(TOPIC, b"x" * 2_000))
                w.cluster.flusher().stall()
                with pytest.raises(RequestTimeoutError):
                    await shop.send(Message(TOPIC, b"late"), timeout_ms=500)
                w.cluster.flusher().release()
            refused, *_, unknown = memory.sends()
            assert (refused.outcome, refused.code) == (REFUSED, 13)
            assert refused.reason == "MessageIllegalError"
            assert (unknown.outcome, unknown.code) == (UNKNOWN, None)
            assert unknown.reason == "RequestTimeoutError"

    run_virtual(main())


def test_request_that_never_left_is_refused_without_a_code() -> None:
    async def main() -> None:
        async with recording() as w:
            memory = Memory()
            async with producer(w, SendLedger(memory)) as shop:
                await shop.send(Message(TOPIC, b"1"))
                await w.cluster.kill_broker()
                with pytest.raises(KourouError):
                    await shop.send(Message(TOPIC, b"2"), timeout_ms=1_000)
            outcomes = {(one.outcome, one.code, one.reason) for one in memory.sends()[1:]}
            assert (REFUSED, None, "ConnectFailedError") in outcomes

    run_virtual(main())


def test_each_try_has_an_entry_under_the_same_id() -> None:
    async def main() -> None:
        async with recording() as w:
            memory = Memory()
            config = ProducerConfig(attempt_timeout_ms=300)
            async with producer(w, SendLedger(memory), config) as shop:
                w.cluster.flusher().stall()
                sending = asyncio.create_task(shop.send(Message(TOPIC, b"1"), timeout_ms=20_000))
                await asyncio.sleep(1)
                w.cluster.flusher().release()
                receipt = await sending
            tries = [one for one in memory.sends() if one.outcome is not BEGUN]
            assert len(tries) > 1
            assert {one.msg_id for one in tries} == {receipt.msg_id}
            assert [one.attempt for one in tries] == list(range(1, len(tries) + 1))
            assert {one.outcome for one in tries[:-1]} == {UNKNOWN}
            assert tries[-1].outcome is STORED

    run_virtual(main())


def test_killed_producer_leaves_its_tries_in_progress_as_begun_and_no_end() -> None:
    async def main() -> None:
        async with recording() as w:
            memory = Memory()
            shop = producer(w, SendLedger(memory))
            await shop.start()
            w.cluster.flusher().stall()
            sending = asyncio.create_task(shop.send(Message(TOPIC, b"1"), timeout_ms=60_000))
            await asyncio.sleep(2.5)
            shop._instance.abort()
            w.cluster.flusher().release()
            await asyncio.gather(sending, return_exceptions=True)
            assert [one.outcome for one in memory.sends()] == [BEGUN]
            assert memory.entries[-1].kind is not EntryKind.CLOSED
            assert not missing(memory.entries)

    run_virtual(main())


def test_full_queue_drops_entries_and_leaves_a_gap_in_the_numbers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with recording() as w:
            memory = Memory()
            ledger = SendLedger(memory, waiting_max=5)
            async with producer(w, ledger) as shop:
                memory.error = OSError("the disk is full")
                for number in range(20):
                    await shop.send(Message(TOPIC, b"%d" % number))
                    await asyncio.sleep(0.3)
                memory.error = None
                await asyncio.sleep(2)
                await shop.send(Message(TOPIC, b"last"))
            assert ledger.dropped == 20 - 4  # `opened` waits as well
            assert len(missing(memory.entries)) == ledger.dropped
            assert memory.entries[-1].kind is EntryKind.CLOSED
            assert len(await_bodies(memory)) == 5

    def await_bodies(memory: Memory) -> list[str]:
        return [one.msg_id for one in memory.sends() if one.outcome is STORED]

    run_virtual(main())
    events = [entry.getMessage().split()[0] for entry in caplog.records]
    assert events.count("ledger.dropped") == 1
    assert events.count("ledger.not_written") == 1


def test_entries_that_cannot_be_written_are_written_later() -> None:
    async def main() -> None:
        async with recording() as w:
            memory = Memory()
            async with producer(w, SendLedger(memory)) as shop:
                memory.error = OSError("away")
                await shop.send(Message(TOPIC, b"1"))
                await asyncio.sleep(5)
                assert not memory.entries
                memory.error = None
            assert not missing(memory.entries)
            assert memory.entries[-1].kind is EntryKind.CLOSED
            assert len(memory.sends()) == 1

    run_virtual(main())


def test_close_is_bounded_if_the_destination_is_away() -> None:
    async def main() -> None:
        async with recording() as w:
            memory = Memory()
            async with producer(w, SendLedger(memory)) as shop:
                await shop.send(Message(TOPIC, b"1"))
                memory.error = OSError("away")
                began_s = asyncio.get_running_loop().time()
            assert 4 < asyncio.get_running_loop().time() - began_s < 8
            assert not memory.is_open

    run_virtual(main())


def test_sends_are_written_in_few_writes() -> None:
    async def main() -> None:
        async with recording() as w:
            memory = Memory()
            async with producer(w, SendLedger(memory)) as shop:
                for future in [await shop.submit(Message(TOPIC, b"x")) for _ in range(500)]:
                    await future
            assert len(memory.writes) <= 3

    run_virtual(main())


def test_numbers_order_sends_that_follow_each_other() -> None:
    async def main() -> None:
        async with recording() as w:
            memory = Memory()
            async with producer(w, SendLedger(memory)) as shop:
                await shop.send(Message(TOPIC, b"1"))
                futures = [await shop.submit(Message(TOPIC, b"%d" % n)) for n in (2, 3)]
                await asyncio.gather(*futures)
            one, two, three = sorted(memory.sends(), key=lambda entry: entry.seq)
            assert one.last_seq < two.seq
            assert min(two.last_seq, three.last_seq) >= max(two.seq, three.seq)

    run_virtual(main())


def test_transaction_is_recorded_with_its_end_and_the_confirmation() -> None:
    async def main() -> None:
        async with recording() as w:
            memory = Memory()
            shop = TransactionProducer(
                "shop",
                w.cluster.namesrv_addr,
                check=lambda _: TransactionState.UNKNOWN,
                hooks=[SendLedger(memory)],
                runtime=w.cluster.runtime,
            )
            async with shop:
                async with shop.transaction(Message(TOPIC, b"kept")) as kept:
                    pass
                with pytest.raises(ValueError, match="no"):
                    async with shop.transaction(Message(TOPIC, b"not kept")) as rolled_back:
                        raise ValueError("no")
            halves = memory.sends()
            assert [one.is_half for one in halves] == [True, True]
            assert [one.queue_offset for one in halves] == [None, None]
            ends = [one for one in memory.entries if one.kind is EntryKind.TRANSACTION_END]
            assert [(one.msg_id, one.state, one.outcome) for one in ends] == [
                (kept.id, "COMMIT", UNKNOWN),
                (kept.id, "COMMIT", STORED),
                (rolled_back.id, "ROLLBACK", UNKNOWN),
                (rolled_back.id, "ROLLBACK", STORED),
            ]

    run_virtual(main())


def test_recall_of_a_scheduled_message_is_recorded() -> None:
    async def main() -> None:
        async with recording() as w:
            memory = Memory()
            async with producer(w, SendLedger(memory)) as shop:
                receipt = await shop.send(Message(TOPIC, b"later", delay_ms=3_600_000))
                assert receipt.recall_handle is not None
                await shop.recall(TOPIC, receipt.recall_handle)
            [sent] = memory.sends()
            assert (sent.is_scheduled, sent.queue_offset) == (True, None)
            assert sent.deliver_at_ms == sent.begun_ms + 3_600_000
            [recall] = [one for one in memory.entries if one.kind is EntryKind.RECALL]
            assert (recall.msg_id, recall.topic, recall.outcome) == (receipt.msg_id, TOPIC, STORED)

    run_virtual(main())


async def bodies_of(cluster: Cluster, topic: str) -> list[bytes]:
    async with cluster.pull_consumer("readers") as reader:
        found: list[bytes] = []
        for queue in await reader.fetch_subscribe_message_queues(topic):
            found += [message.body for message in (await reader.pull(queue, 0)).messages]
        return found


def test_topic_as_destination_has_all_entries_and_none_of_its_own_messages() -> None:
    async def main() -> None:
        async with recording() as w:
            async with producer(w, SendLedger("send-ledger")) as shop:
                ids = {(await shop.send(Message(TOPIC, b"x"))).msg_id for _ in range(50)}
            bodies = await bodies_of(w.cluster, "send-ledger")
            entries = [one for body in bodies for one in decode_entries(body) if one is not None]
            assert not missing(entries)
            assert {one.msg_id for one in entries if one.kind is EntryKind.SEND} == ids
            assert {one.topic for one in entries} == {TOPIC, ""}

    run_virtual(main())


def test_files_survive_an_incomplete_line_of_an_earlier_write(tmp_path: Path) -> None:
    async def main() -> None:
        async with recording() as w:
            async with producer(w, SendLedger(LedgerFiles(tmp_path))) as shop:
                await shop.send(Message(TOPIC, b"1"))
                await asyncio.sleep(2)
                [file] = tmp_path.iterdir()  # noqa: ASYNC240 - one directory
                with file.open("ab") as opened:
                    opened.write(b'{"run":"cut')
                await shop.send(Message(TOPIC, b"2"))
            found = list(decode_entries(file.read_bytes()))
            assert found.count(None) == 1
            entries = [one for one in found if one is not None]
            assert not missing(entries)
            assert entries[-1].kind is EntryKind.CLOSED

    run_virtual(main())


def test_ledger_serves_one_producer_and_checks_its_arguments() -> None:
    async def main() -> None:
        ledger = SendLedger(Memory())
        Producer("shop", "127.0.0.1:9876", hooks=[ledger])
        with pytest.raises(UsageError, match="create a SendLedger for each"):
            Producer("shop", "127.0.0.1:9876", hooks=[ledger])
        with pytest.raises(ConfigError, match="flush_interval_ms is 0"):
            SendLedger(Memory(), flush_interval_ms=0)
        with pytest.raises(ConfigError, match="waiting_max is 0"):
            SendLedger(Memory(), waiting_max=0)
        with pytest.raises(InvalidTopicError):
            SendLedger("no topic")

    run_virtual(main())


def test_bodies_of_entries_are_bounded_and_complete() -> None:
    entries = [
        LedgerEntry(
            run="r", seq=seq, kind=EntryKind.SEND, begun_ms=seq, outcome=STORED, msg_id="A" * 32
        )
        for seq in range(1, 200)
    ]
    bodies = list(encode_entries(entries, 1_000))
    assert max(map(len, bodies)) <= 1_000
    assert [one for body in bodies for one in decode_entries(body)] == entries
    assert len(list(encode_entries(entries[:1], 1))) == 1
    assert list(decode_entries(b"\xff\n[]\n\n")) == [None, None]


@pytest.mark.slow
def test_blocking_producer_writes_a_ledger(tmp_path: Path) -> None:
    directory = tmp_path / "ledger"
    with Serving.start(tmp_path / "store") as serving:
        ledger = SendLedger(LedgerFiles(directory))
        with kourou.blocking.Producer("shop", serving.namesrv, hooks=[ledger]) as shop:
            ids = [shop.send(Message("orders", b"%d" % number)).msg_id for number in range(5)]
    [file] = directory.iterdir()
    entries = [one for one in decode_entries(file.read_bytes()) if one is not None]
    assert [one.msg_id for one in entries if one.kind is EntryKind.SEND] == ids
    assert entries[-1].kind is EntryKind.CLOSED
