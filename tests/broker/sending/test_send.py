"""Sends are stored as by Java's broker, and acknowledged when durable."""

from __future__ import annotations

import asyncio
import errno
import itertools
from collections.abc import Callable

import pytest

from kourou.broker.config import FlushDiskType
from kourou.broker.timer.timer_config import TimerConfig
from kourou.model.group import SubscriptionGroup
from kourou.model.msgid import decode_offset_msg_id
from kourou.model.properties import decode_properties
from kourou.model.queue import MessageQueue
from kourou.model.topic import TopicConfig
from kourou.protocol.codes import VERSION_MAX_RECONSUME_TIMES
from kourou.protocol.command import RemotingCommand
from kourou.protocol.message_batch import BatchItem, encode_batch
from kourou.protocol.record.decode import decode_message, decode_messages
from kourou.remoting.steady_time import steady_ms
from kourou.testing.send_rig import SendRig, message, run_sends

Golden = Callable[[str], tuple[RemotingCommand, RemotingCommand | None]]

BROKEN = OSError(errno.EIO, "Input/output error")


# Records and answers


def test_the_answer_is_javas_field_by_field(golden: Golden) -> None:
    request, expected = golden("310_SEND_MESSAGE_V2_send-sync")
    assert expected is not None

    async def test(bench: SendRig) -> None:
        answer = await bench.ask(request)
        assert (answer.code, answer.remark) == (expected.code, expected.remark)
        assert answer.ext_fields == expected.ext_fields | {"KOUROU_DURABILITY": "DISK"}

    run_sends(test)


@pytest.mark.parametrize(
    "name",
    [
        "310_SEND_MESSAGE_V2_send-sync",
        "310_SEND_MESSAGE_V2_send-sync-to-queue",
        "310_SEND_MESSAGE_V2_send-no-tags-no-keys",
        "310_SEND_MESSAGE_V2_send-compressed-zlib",
        "310_SEND_MESSAGE_V2_send-user-properties-unicode",
        "310_SEND_MESSAGE_V2_send-wait-store-false",
    ],
)
def test_a_message_is_stored_as_java_stores_it(golden: Golden, name: str) -> None:
    request, _ = golden(name)
    unique_key = decode_properties(request.ext_fields["i"].encode())["UNIQ_KEY"]
    _, pulled = golden("11_PULL_MESSAGE_pull-every-kind-of-record")
    assert pulled is not None
    (java,) = [
        message
        for message in decode_messages(pulled.body, decompress=False)
        if message.properties["UNIQ_KEY"] == unique_key
    ]

    async def test(bench: SendRig) -> None:
        bench.peer.remote_address = java.born_host
        await bench.ask(request)
        (ours,) = bench.stored("GoldenNormal", java.queue_id)
        for place in ("queue_offset", "physical_offset", "store_at_ms", "store_size"):
            setattr(ours, place, getattr(java, place))
        assert ours == java

    run_sends(test)


def test_a_delayed_message_is_stored_in_javas_queue(golden: Golden) -> None:
    request, expected = golden("310_SEND_MESSAGE_V2_send-delay-level")
    _, pulled = golden("11_PULL_MESSAGE_pull-schedule-topic")
    assert expected is not None
    assert pulled is not None
    java = decode_message(pulled.body)

    async def test(bench: SendRig) -> None:
        answer = await bench.ask(request)
        (ours,) = bench.stored("SCHEDULE_TOPIC_XXXX", 2)
        assert ours.properties == java.properties
        assert answer.ext_fields["queueId"] == expected.ext_fields["queueId"] == "3"
        entry = bench.broker.store.reader.entry("SCHEDULE_TOPIC_XXXX", 2, 0)
        assert entry is not None
        assert entry.tags_code == ours.store_at_ms + 10_000

    run_sends(test)


@pytest.mark.parametrize(
    ("sent_level", "level"), [("18", 18), ("19", 18), ("999999999", 18), ("0", 0), ("-3", 0)]
)
def test_a_delay_level_out_of_range_is_the_highest_or_none(sent_level: str, level: int) -> None:
    async def test(bench: SendRig) -> None:
        assert (await bench.send(b"x", f"DELAY\x01{sent_level}\x02")).code == 0
        where = ("SCHEDULE_TOPIC_XXXX", level - 1) if level else ("T", 0)
        (stored,) = bench.stored(*where)
        assert stored.properties["DELAY"] == (str(level) if level else sent_level)

    run_sends(test)


def test_a_delay_level_takes_precedence_over_a_delivery_time() -> None:
    both = "DELAY\x013\x02TIMER_DELIVER_MS\x011700000000000\x02TIMER_DELAY_SEC\x019\x02"

    async def test(bench: SendRig) -> None:
        assert (await bench.send(b"x", both)).code == 0
        (stored,) = bench.stored("SCHEDULE_TOPIC_XXXX", 2)
        assert not [name for name in stored.properties if name.startswith("TIMER")]

    run_sends(test)


@pytest.mark.parametrize("delay_ms", range(1, 12))
def test_a_message_that_becomes_due_while_it_is_stored_is_not_stored_too_early(
    delay_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(bench: SendRig) -> None:
        clock = bench.broker.clock
        ticks = itertools.count(clock.now_ms())
        due_ms = clock.now_ms() + delay_ms
        monkeypatch.setattr(clock, "now_ms", lambda: next(ticks))  # a millisecond a reading

        assert (await bench.send(b"x", f"TIMER_DELIVER_MS\x01{due_ms}\x02")).code == 0

        stored = bench.stored() or bench.stored("rmq_sys_wheel_timer")
        assert len(stored) == 1
        assert stored[0].topic == "rmq_sys_wheel_timer" or stored[0].store_at_ms >= due_ms

    run_sends(test)


@pytest.mark.parametrize("timer", ["TIMER_DELIVER_MS\x014102444800000", "TIMER_DELAY_MS\x0190000"])
def test_a_copy_of_a_scheduled_message_is_scheduled_for_its_own_time(timer: str) -> None:
    async def test(bench: SendRig) -> None:
        now_ms = bench.broker.clock.now_ms()
        copied = f"{timer}\x02TIMER_OUT_MS\x01{now_ms - 5_000}\x02"
        assert (await bench.send(b"x", copied)).code == 0
        assert bench.stored() == []
        (waiting,) = bench.stored("rmq_sys_wheel_timer")
        assert int(waiting.properties["TIMER_OUT_MS"]) > now_ms

    run_sends(test, timer=TimerConfig(timer_max_delay_sec=3_000_000_000))


def test_code_10_with_long_field_names_is_equivalent(golden: Golden) -> None:
    request, expected = golden("10_SEND_MESSAGE_v1-send-code-10")
    assert expected is not None

    async def test(bench: SendRig) -> None:
        answer = await bench.ask(request)
        assert answer.code == 0
        assert answer.ext_fields.keys() > expected.ext_fields.keys()
        (ours,) = bench.stored("GoldenNormal")
        assert (ours.body, ours.keys, ours.tags) == (b"long header names", ["v1"], "TagA")

    run_sends(test)


def test_a_batch_is_stored_message_by_message(golden: Golden) -> None:
    request, expected = golden("320_SEND_BATCH_MESSAGE_send-batch")
    assert expected is not None

    async def test(bench: SendRig) -> None:
        answer = await bench.ask(request)
        assert answer.code == 0
        assert answer.ext_fields["transactionId"] == expected.ext_fields["transactionId"]
        stored = bench.stored("GoldenNormal")
        ids = answer.ext_fields["msgId"].split(",")
        assert len(stored) == 3
        assert [decode_offset_msg_id(text)[1] for text in ids] == [
            message.physical_offset for message in stored
        ]
        assert all("MSG_REGION" not in message.properties for message in stored)

    run_sends(test)


def test_a_message_without_properties_gets_a_unique_key() -> None:
    async def test(bench: SendRig) -> None:
        answers = [await bench.send(properties=properties) for properties in ("", "", None)]
        stored = bench.stored()
        keys = [message.properties["UNIQ_KEY"] for message in stored]
        assert keys == [answer.ext_fields["transactionId"] for answer in answers]
        assert len(set(keys)) == 3

    run_sends(test)


def test_the_receipt_of_a_pop_is_not_stored() -> None:
    async def test(bench: SendRig) -> None:
        await bench.send(properties="POP_CK\x010 1 2\x02a\x01b\x02")
        (stored,) = bench.stored()
        assert "POP_CK" not in stored.properties
        assert stored.properties["a"] == "b"

    run_sends(test)


def test_a_oneway_message_is_stored_and_not_answered() -> None:
    async def test(bench: SendRig) -> None:
        bench.start(message(oneway=True))
        await asyncio.sleep(1)
        assert bench.peer.sent == []
        assert len(bench.stored()) == 1

    run_sends(test)


def test_a_negative_queue_lets_the_broker_choose() -> None:
    async def test(bench: SendRig) -> None:
        answers = [await bench.send(queue_id=-1) for _ in range(20)]
        assert {answer.ext_fields["queueId"] for answer in answers} == {"0", "1", "2", "3"}

    run_sends(test)


def test_a_priority_chooses_the_queue_unless_another_property_takes_precedence() -> None:
    async def test(bench: SendRig) -> None:
        low = await bench.send(properties="_SYS_MSG_PRIORITY_\x011\x02")
        high = await bench.send(properties="_SYS_MSG_PRIORITY_\x012147483647\x02")
        ordered = await bench.send(properties="_SYS_MSG_PRIORITY_\x011\x02__SHARDINGKEY\x01k\x02")
        assert [a.ext_fields["queueId"] for a in (low, high, ordered)] == ["1", "3", "0"]
        (stored,) = bench.stored(queue_id=0)
        assert "_SYS_MSG_PRIORITY_" not in stored.properties

    run_sends(test)


@pytest.mark.parametrize(
    "declared", ["UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED"]
)
def test_a_broker_accepts_every_message_type_whatever_the_topic_declares(declared: str) -> None:
    """In Java too, only the proxy enforces the message type."""

    async def test(bench: SendRig) -> None:
        attributes = {"message.type": declared}
        bench.broker.topics.put(TopicConfig("T", 4, 4, attributes=attributes))
        kinds = {
            ("T", 0): ("", "__SHARDINGKEY\x01k\x02"),
            ("T", 2): ("_SYS_MSG_PRIORITY_\x012\x02",),
            ("SCHEDULE_TOPIC_XXXX", 1): ("DELAY\x012\x02",),
            ("rmq_sys_wheel_timer", 0): ("TIMER_DELAY_SEC\x019\x02",),
            ("RMQ_SYS_TRANS_HALF_TOPIC", 0): ("TRAN_MSG\x01true\x02PGROUP\x01p\x02",),
        }
        for where, properties in kinds.items():
            for one in properties:
                is_half = one.startswith("TRAN")
                answer = await bench.send(b"x", one, sys_flag=4 if is_half else 0)
                assert answer.code == 0, answer.remark
            assert len(bench.stored(*where)) == len(properties)

    run_sends(test)


def test_the_address_in_ids_is_the_one_the_producer_connected_to_if_none_is_advertised() -> None:
    async def test(bench: SendRig) -> None:
        bench.handlers._store_host = None
        answer = await bench.send()
        assert decode_offset_msg_id(answer.ext_fields["msgId"])[0] == bench.peer.local_address

    run_sends(test)


def test_properties_that_leave_no_room_for_later_ones_are_refused(golden: Golden) -> None:
    request, _ = golden("310_SEND_MESSAGE_V2_raw-send-properties-32767")

    async def test(bench: SendRig) -> None:
        answer = await bench.ask(request)
        assert answer.code == 13
        assert "limit 30000: put large values into the body" in (answer.remark or "")

    run_sends(test)


@pytest.mark.parametrize(("more", "code"), [(-1, 0), (0, 0), (1, 13)])
@pytest.mark.parametrize("is_batch", [False, True], ids=["message", "batch"])
def test_properties_are_accepted_up_to_their_limit(more: int, code: int, *, is_batch: bool) -> None:
    added = f"UNIQ_KEY\x01{'0' * 32}\x02CLUSTER\x01c\x02REAL_TOPIC\x01T\x02"

    async def test(bench: SendRig) -> None:
        own = f"k\x01{'v' * (30_000 - 3 + more)}\x02"
        if is_batch:
            body = encode_batch([BatchItem(0, b"x", (added + own).encode())])
            answer = await bench.send(body, "", batch=True)
        else:
            answer = await bench.send(b"x", added + own)
        assert (answer.code, bench.stored_count()) == (code, 0 if code else 1)

    run_sends(test)


# Topics


def test_a_new_topic_is_in_its_file_before_the_message_is_acknowledged() -> None:
    async def test(bench: SendRig) -> None:
        answer = await bench.send(topic="New")
        assert answer.code == 0
        assert b'"New"' in bench.broker.disk.read("config/topics.json", 0, 1 << 20)
        assert len(bench.stored("New")) == 1

    run_sends(test)


def test_a_topic_that_cannot_be_saved_refuses_its_messages_until_it_can() -> None:
    async def test(bench: SendRig) -> None:
        bench.broker.disk.fail_after(0, OSError(28, "No space left"), ["write"])
        refused = await bench.send(topic="New")
        accepted = await bench.send(topic="New")

        assert refused.code == 14
        assert "No space left" in (refused.remark or "")
        assert accepted.code == 0
        assert len(bench.stored("New")) == 1

    run_sends(test)


def test_a_send_to_a_retry_topic_creates_its_group(golden: Golden) -> None:
    request, _ = golden("310_SEND_MESSAGE_V2_raw-send-retry-topic")

    async def test(bench: SendRig) -> None:
        assert (await bench.ask(request)).code == 0
        assert bench.broker.groups.get("golden_group") is not None
        (stored,) = bench.stored("%RETRY%golden_group")
        assert stored.reconsume_times == 2

    run_sends(test)


def test_a_message_above_the_limit_of_retries_becomes_a_dead_letter(golden: Golden) -> None:
    request, _ = golden("310_SEND_MESSAGE_V2_raw-send-retry-topic-to-dlq")

    async def test(bench: SendRig) -> None:
        assert (await bench.ask(request)).code == 0
        (stored,) = bench.stored("%DLQ%golden_group")
        assert stored.properties["DELAY"] == "-1"
        assert b"%DLQ%golden_group" in bench.broker.disk.read("config/topics.json", 0, 1 << 20)

    run_sends(test)


def test_a_client_from_3_4_9_on_may_override_the_groups_limit_of_retries() -> None:
    async def test(bench: SendRig) -> None:
        bench.broker.groups.put(SubscriptionGroup("g", retry_max_times=2))
        since = VERSION_MAX_RECONSUME_TIMES
        for times, limit, version in (
            (2, None, 513), (3, 5, since), (3, None, 513), (3, 5, since - 1)
        ):  # fmt: skip
            command = message(topic="%RETRY%g", reconsume_times=times, max_reconsume_times=limit)
            command.version = version
            assert (await bench.ask(command)).code == 0
        assert len(bench.stored("%RETRY%g")) == 2
        assert len(bench.stored("%DLQ%g")) == 2

    run_sends(test)


def test_a_dead_letter_is_not_scheduled() -> None:
    async def test(bench: SendRig) -> None:
        answer = await bench.send(
            b"x", "TIMER_DELIVER_MS\x014102444800000\x02", topic="%RETRY%g", reconsume_times=17
        )
        assert answer.code == 0
        (stored,) = bench.stored("%DLQ%g")
        assert "TIMER_DELIVER_MS" not in stored.properties

    run_sends(test)


def test_a_message_sent_back_by_an_ordered_group_is_a_dead_letter() -> None:
    async def test(bench: SendRig) -> None:
        queue = MessageQueue("T", "broker-a", 0)
        bench.locks.lock("ordered", "c", [queue], steady_ms())
        for group in ("ordered", "other"):
            assert (await bench.send(topic=f"%RETRY%{group}", reconsume_times=1)).code == 0
        assert len(bench.stored("%DLQ%ordered")) == 1
        assert len(bench.stored("%RETRY%other")) == 1
        bench.locks.unlock("ordered", "c", [queue])
        assert (await bench.send(topic="%RETRY%ordered", reconsume_times=1)).code == 0
        assert len(bench.stored("%RETRY%ordered")) == 1

    run_sends(test)


def test_a_redriven_message_that_fails_again_becomes_a_dead_letter() -> None:
    redriven = "KOUROU_REDRIVEN_FROM\x01%DLQ%g\x02"

    async def test(bench: SendRig) -> None:
        bench.locks.lock("g", "c", [MessageQueue("T", "broker-a", 0)], steady_ms())
        for header in ({}, {"reconsume_times": 1}, {"max_reconsume_times": 16}):
            answer = await bench.send(b"x", redriven, topic="%RETRY%g", **header)
            assert answer.code == 0
        assert len(bench.stored("%RETRY%g")) == 1
        assert len(bench.stored("%DLQ%g")) == 2

    run_sends(test)


# Disk results


def test_a_sync_that_fails_is_answered_as_not_available() -> None:
    async def test(bench: SendRig) -> None:
        bench.broker.flusher.fail_next(BROKEN)
        failed = await bench.send()
        after = await bench.send()
        assert (failed.code, after.code) == (14, 14)
        assert "msgId" not in failed.ext_fields
        assert "Input/output error" in (failed.remark or "")

    run_sends(test)


def test_a_late_sync_is_answered_with_the_whole_header() -> None:
    async def test(bench: SendRig) -> None:
        bench.broker.flusher.stall()
        bench.start(message())
        await asyncio.sleep(10)
        (answer,) = bench.peer.sent
        assert answer.code == 10
        assert answer.ext_fields.keys() >= {"msgId", "queueId", "queueOffset", "transactionId"}
        assert answer.ext_fields["KOUROU_DURABILITY"] == "MEMORY"
        assert "5000 ms" in (answer.remark or "")

    run_sends(test)


def test_a_message_that_does_not_wait_is_answered_although_the_sync_hangs() -> None:
    async def test(bench: SendRig) -> None:
        assert (await bench.send()).code == 0
        bench.broker.flusher.stall()
        answer = await bench.send(properties="WAIT\x01false\x02")
        assert answer.code == 0
        assert answer.ext_fields["KOUROU_DURABILITY"] == "MEMORY"
        assert len(bench.stored()) == 1, "consumers see it when it is synced"

    run_sends(test)


def test_a_half_message_waits_for_the_sync_whatever_its_properties() -> None:
    async def test(bench: SendRig) -> None:
        bench.broker.flusher.stall()
        bench.start(message(properties="WAIT\x01false\x02TRAN_MSG\x01true\x02"))
        await asyncio.sleep(1)
        assert bench.peer.sent == []
        bench.broker.flusher.release()
        await asyncio.sleep(1)
        (answer,) = bench.peer.sent
        assert (answer.code, answer.ext_fields["KOUROU_DURABILITY"]) == (0, "DISK")

    run_sends(test)


def test_without_waiting_for_syncs_an_acknowledged_message_is_in_memory() -> None:
    async def test(bench: SendRig) -> None:
        assert (await bench.send()).ext_fields["KOUROU_DURABILITY"] == "MEMORY"

    run_sends(test, flush_disk_type=FlushDiskType.ASYNC_FLUSH)


def test_a_full_disk_is_answered_with_its_free_bytes() -> None:
    async def test(bench: SendRig) -> None:
        assert (await bench.send()).code == 0
        bench.broker.commit.flush(bench.broker.clock.now_ms())
        free, bench.broker.disk.free = bench.broker.disk.free, 1000
        bench.broker.commit.flush(bench.broker.clock.now_ms())
        answer = await bench.send()
        assert answer.code == 14
        assert "bytes free, writes need 536870912" in (answer.remark or "")
        bench.broker.disk.free = free
        assert (await bench.send()).code == 0

    run_sends(test)


def test_sends_beyond_the_pending_limit_are_answered_busy() -> None:
    async def test(bench: SendRig) -> None:
        bench.broker.flusher.stall()
        for _ in range(5):
            bench.start(message(bytes(2_000_000)))
        await asyncio.sleep(1)
        (answer,) = bench.peer.sent
        assert answer.code == 2
        assert (answer.remark or "").startswith("[OVERLOAD]")
        bench.broker.flusher.release()
        await asyncio.sleep(1)
        assert [answer.code for answer in bench.peer.sent] == [2, 0, 0, 0, 0]

    run_sends(test, pending_connection_bytes_max=2 * 4 * 1024 * 1024)


def test_answers_are_sent_in_log_order() -> None:
    async def test(bench: SendRig) -> None:
        for number in range(50):
            bench.start(message(queue_id=number % 4))
            await asyncio.sleep(0.0003)
        await asyncio.sleep(1)
        positions = [
            decode_offset_msg_id(answer.ext_fields["msgId"])[1] for answer in bench.peer.sent
        ]
        assert len(positions) == 50
        assert positions == sorted(positions)

    run_sends(test)


@pytest.mark.parametrize("is_fast", [False, True])
@pytest.mark.parametrize("is_alike", [False, True])
def test_a_batch_of_more_messages_than_allowed_is_refused_and_nothing_stored(
    *, is_fast: bool, is_alike: bool
) -> None:
    def batch(count: int) -> bytes:
        bodies = [b"b" * (1 + (0 if is_alike else number % 3)) for number in range(count)]
        return encode_batch([BatchItem(0, body, b"a\x01b\x02") for body in bodies])

    async def test(bench: SendRig) -> None:
        lone = bench.connect(is_fast=is_fast)
        for count in (9, 10, 11):
            lone.receive(message(batch(count), "", code=320, batch=True))
            await asyncio.sleep(1)
        below, at, above = lone.sent()
        assert (below.code, at.code, above.code) == (0, 0, 13)
        assert "a batch of more than 10 messages" in str(above.remark)
        assert "batchMessagesMax" in str(above.remark)
        assert bench.stored_count() == 19
        lone.end()

    run_sends(test, batch_messages_max=10)


@pytest.mark.parametrize("name", ["DELAY", "TIMER_DELIVER_MS", "TRAN_MSG"])
def test_forbidden_properties_of_batch_messages_are_found_at_any_position(name: str) -> None:
    value = "true" if name == "TRAN_MSG" else "3"

    async def test(bench: SendRig) -> None:
        for before, after in (("", ""), ("a\x01b\x02", ""), ("", "a\x01b\x02")):
            text = f"{before}{name}\x01{value}\x02{after}".encode()
            items = [BatchItem(0, b"x", b""), BatchItem(0, b"x", text)]
            answer = await bench.send(encode_batch(items), "", code=320, batch=True)
            assert answer.code == 13
        harmless = f"x{name}\x01{value}\x02a\x01{name}\x02".encode()
        items = [BatchItem(0, b"x", harmless)]
        assert (await bench.send(encode_batch(items), "", code=320, batch=True)).code == 0

    run_sends(test)
