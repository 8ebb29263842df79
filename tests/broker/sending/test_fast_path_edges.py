"""Edge cases of the fast paths: unusual headers, limits, configuration changes, errors."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kourou.broker.sending.plain_sends import PlainSends
from kourou.broker.sending.send_answers import SendAnswers
from kourou.broker.statistics.stats import BrokerStats
from kourou.broker.writing.put import PutResult, PutStatus
from kourou.model.topic import TopicConfig
from kourou.protocol.command import RemotingCommand
from kourou.protocol.frame import encode_frame
from kourou.store.config import StoreConfig
from kourou.testing.disk import SimDisk
from kourou.testing.lone_connection import LoneConnection
from kourou.testing.loop import run_virtual
from kourou.testing.send_rig import SendRig, message
from kourou.testing.simulated_broker import SimulatedBroker, small_config
from tests.broker.sending.test_fast_batch import batch_frame, taken
from tests.broker.sending.test_fast_send import Outcome, assert_same, plain_frames

QUEUES = b"".join(plain_frames(4))
"""Creates the queues of `T` on the general path."""
REGION = "MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01DefaultCluster\x02"


def changed(frame: bytes, old: bytes, new: bytes) -> bytes:
    """Return the frame with other text in its header."""
    assert old in frame[8:], old
    rest = frame[8:].replace(old, new, 1)
    header_size = int.from_bytes(frame[4:8], "big") + len(new) - len(old)
    return (len(rest) + 4).to_bytes(4, "big") + header_size.to_bytes(4, "big") + rest


@pytest.mark.parametrize("is_batch", [False, True])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"g":"1700000000000"', b'"g":""'),
        (b'"g":"1700000000000"', b'"g":"9223372036854775808"'),
        (b'"d":"4"', b'"d":""'),
        (b'"f":"0"', b'"f":""'),
        (b'"h":"0"', b'"h":""'),
        (b'"e":"', b'"e":"2","e":"'),
        (b'"flag":0', b'"flag":0.0'),
        (b'"flag":0', b'"flag":2,"flag":0'),
        (b'"flag":0', b'"flag":0,"flag":2'),
        (b'"extFields":{', b'"extFields":{"a":"q","b":"nope",'),
        (b'"extFields":', b'"extFields":{},"extFields":'),
        (b'"version":', b'"version":99999999999,"version":'),
        (b'"language":"PYTHON"', b'"language":"KLINGON"'),
        (b'"language":"PYTHON"', b'"language":"\xff"'),
        (b'"a":"p"', b'"a":"\\ud800"'),
        (b'"b":"T"', b'"b":"\\u0054"'),
        (b"\\u0001true", b"\x01true"),
        (b"true", b"true\\u0000"),
        (b"0" * 30, "é".encode() * 30),
        (b"0" * 30, "\u0966".encode() * 30),
        (b'{"code":3', b'{"code":10,"code":3'),
    ],
)
def test_an_unusual_header_has_the_same_outcome_on_both_paths(
    old: bytes, new: bytes, *, is_batch: bool
) -> None:
    odd = changed(batch_frame(2) if is_batch else plain_frames(7)[6], old, new)
    assert_same([QUEUES, odd, odd + plain_frames(8)[7]])


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_properties_at_the_size_limit_have_the_same_outcome_on_both_paths(more: int) -> None:
    text = f"UNIQ_KEY\x01{1:032X}\x02WAIT\x01true\x02a\x01"
    own_counts = (0, len(REGION), len(REGION) + len("__CRC32#\x010123456789\x02"))
    for own_bytes in (*own_counts, 2 - len(text)):
        size = 30_000 - own_bytes - len(text) - 1 + more
        frame = encode_frame(message(properties=f"{text}{'v' * size}\x02"))
        assert_same([QUEUES, frame, frame])


def test_a_record_that_just_fits_into_its_segment_is_stored_there_on_both_paths() -> None:
    store = StoreConfig(commitlog_segment_bytes=1 << 14, consumequeue_file_bytes=2000)
    last_positions = set()
    for size in range(3986, 3993):
        frames = [plain_frames(4, b"b" * one)[1] for one in (5000, 4999, size)]
        fast = assert_same(
            [QUEUES, *frames, plain_frames(4)[1]], store=store, max_message_size_bytes=1 << 13
        )
        last_positions.add(fast.files()["consumequeue/T/1/00000000000000000000"][80:88])
    assert (1 << 14).to_bytes(8, "big") in last_positions
    assert len(last_positions) > 1, "the record fits in some cases only"


def test_properties_added_by_the_broker_count_towards_the_record_size() -> None:
    options: dict[str, Any] = {
        "region_id": "r" * 3000,
        "max_message_size_bytes": 10_000,
        "pending_connection_bytes_max": 30_000,
    }
    fast = assert_same([QUEUES, b"".join(plain_frames(16, b"b"))], **options)
    assert b"[OVERLOAD]" in fast.answers


Change = Callable[[SimulatedBroker], object]


def change_order(broker: SimulatedBroker) -> None:
    """Make the topic ordered and the broker not writable."""
    broker.topics.put(replace(broker.topics.by_name["T"], order=True))
    broker.live_config.update({"brokerPermission": "4"}, 1)


def delete_topic(broker: SimulatedBroker) -> None:
    """Begin to delete the topic, as its admin request does."""
    broker.topics.delete("T")
    broker.commit.begin_deletion("T")


def make_topic_again(broker: SimulatedBroker) -> None:
    """Recreate the topic while its files are being removed."""
    delete_topic(broker)
    broker.topics.put(TopicConfig("T", 4, 4))


CHANGES: dict[str, Change] = {
    "max size": lambda broker: broker.live_config.update({"maxMessageSize": "99"}, 1),
    "not writable": lambda broker: broker.live_config.update({"brokerPermission": "4"}, 1),
    "ordered and not writable": change_order,
    "topic read-only": lambda broker: broker.topics.put(TopicConfig("T", 4, 4, perm=4)),
    "fewer queues": lambda broker: broker.topics.put(TopicConfig("T", 1, 1)),
    "more queues": lambda broker: broker.topics.put(TopicConfig("T", 8, 8)),
    "no queues to write": lambda broker: broker.topics.put(TopicConfig("T", 4, 0)),
    "message type": lambda broker: broker.topics.put(
        TopicConfig("T", 4, 4, attributes={"message.type": "FIFO"})
    ),
    "compacted": lambda broker: broker.topics.put(
        TopicConfig("T", 4, 4, attributes={"cleanup.policy": "COMPACTION"})
    ),
    "deleted": delete_topic,
    "deleted and made again": make_topic_again,
    "read-only store": lambda broker: broker.store.writer.set_read_only("a test"),
}


@pytest.mark.parametrize("pause_s", [0.0, 1.0])
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_between_two_reads_takes_effect_at_once(name: str, pause_s: float) -> None:
    plain = plain_frames(16)

    def read(first: int) -> bytes:
        return b"".join(plain[first : first + 3]) + batch_frame(first % 4)

    def outcome(*, is_fast: bool) -> tuple[object, ...]:
        disk = SimDisk()
        found: list[Outcome] = []

        async def main() -> None:
            broker = SimulatedBroker(disk, config=small_config())
            rig = SendRig(broker)
            await broker.topics.persist()
            lone = rig.connect(is_fast=is_fast)
            lone.receive_bytes(QUEUES)
            await asyncio.sleep(1)
            lone.receive_bytes(read(4))
            await asyncio.sleep(pause_s)
            CHANGES[name](broker)
            lone.receive_bytes(read(8))
            lone.receive_bytes(read(12))
            await asyncio.sleep(30)
            found.append(Outcome(disk, lone, broker))
            answers.append({answer.opaque: answer for answer in lone.sent()})
            await broker.stop()

        answers: list[dict[int, Any]] = []
        run_virtual(main())
        (end,) = found
        assert end.is_all_answered
        assert end.pending == (0, 0)
        return answers, end.files(), end.stats, end.ending

    assert outcome(is_fast=True) == outcome(is_fast=False)


def test_sync_timeout_of_buffered_frames_starts_when_they_are_processed() -> None:
    async def main() -> None:
        broker = SimulatedBroker(SimDisk(), config=small_config(sync_flush_timeout_ms=5_000))
        rig = SendRig(broker)
        await broker.topics.persist()
        lone = rig.connect(is_fast=True)
        lone.receive_bytes(QUEUES)
        await asyncio.sleep(1)
        lone.connection.pause_writing()
        lone.receive_bytes(plain_frames(5)[4] + batch_frame(5))
        await asyncio.sleep(60)
        assert len(lone.sent()) == 4, "the peer does not read"

        lone.connection.resume_writing()
        await asyncio.sleep(1)

        assert [answer.code for answer in lone.sent()[4:]] == [0, 0]
        await broker.stop()

    run_virtual(main())


@pytest.mark.parametrize("size", [30_000, 2_000_000])
def test_long_properties_are_not_cached(size: int) -> None:
    async def main() -> None:
        broker = SimulatedBroker(SimDisk(), config=small_config(max_message_size_bytes=1 << 19))
        rig = SendRig(broker)
        await broker.topics.persist()
        lone = rig.connect(is_fast=True)
        lone.receive_bytes(QUEUES)
        for number in range(4):
            text = f"UNIQ_KEY\x01{number:032X}\x02WAIT\x01true\x02a\x01{number}{'v' * size}\x02"
            lone.receive_bytes(encode_frame(message(properties=text)))
        await asyncio.sleep(1)
        assert sum(map(len, rig.fast_send.shapes)) < 1000
        await broker.stop()

    run_virtual(main())


def test_a_batch_with_too_large_an_answer_takes_the_general_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frame = batch_frame(count=600)
    assert taken([frame]) == len(frame)

    # The real limit needs half a million messages.
    monkeypatch.setattr("kourou.broker.sending.fast_batch.ANSWER_BYTES_MAX", 33 * 600)
    assert taken([frame]) == 0
    assert_same([QUEUES, frame])


class BrokenClock:
    """A clock that raises an error."""

    def now_ms(self) -> int:
        raise OSError


class BrokenPath:
    """A path whose sends cannot be counted."""

    answers = SendAnswers({})
    copies = 1
    clock = BrokenClock()
    stats = BrokerStats("c", 0)


@pytest.mark.parametrize(
    "end",
    [
        PlainSends.stored,
        lambda sends: sends.late(PutStatus.FLUSH_DISK_TIMEOUT, "late"),
        lambda sends: sends.answer(PutResult(PutStatus.BUSY)),
    ],
)
def test_a_failing_answer_to_one_producer_does_not_affect_others(
    end: Callable[[PlainSends], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        broken, other = LoneConnection({}), LoneConnection({})
        sends = PlainSends(BrokenPath(), 0)
        answer = encode_frame(RemotingCommand(310, opaque=7))
        for lone, reply in ((broken, b"\0\0\0\1x"), (other, answer)):
            lone.connection.unanswered.add_all(100, 1)
            sends.reads.append((lone.connection, [reply], 100))
        sends.puts = 2

        end(sends)
        end(sends)

        assert [lone.connection.unanswered.count for lone in (broken, other)] == [0, 0]
        assert [command.opaque for command in other.sent()] == [7]
        assert caplog.records

    run_virtual(main())


def declined(frame: bytes, *, is_batch: bool = False, **options: Any) -> Counter[str]:
    """Return why a fast path declines the frame; the queues of `T` exist."""
    found: Counter[str] = Counter()

    async def main() -> None:
        broker = SimulatedBroker(SimDisk(), config=small_config(**options))
        rig = SendRig(broker)
        await broker.topics.persist()
        lone = rig.connect(is_fast=True)
        lone.receive_bytes(QUEUES)
        await asyncio.sleep(1)
        reasons = rig.fast_batch.declined if is_batch else rig.fast_send.declined
        before = reasons.copy()
        lone.receive_bytes(frame)
        await asyncio.sleep(1)
        found.update(reasons - before)
        await broker.stop()

    run_virtual(main())
    return found


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, None),
        ({"topic": "Unknown"}, "topic"),
        ({"queue_id": 99}, "queue"),
        ({"sys_flag": 8}, "flag"),
        ({"properties": "DELAY\x011\x02"}, "properties"),
        ({"properties": f"a\x01{'v' * 32_000}\x02"}, "properties too long"),
        ({"reconsume_times": 1}, "header"),
    ],
)
def test_declined_sends_are_counted_by_reason(fields: dict[str, Any], reason: str | None) -> None:
    assert declined(encode_frame(message(**fields))) == ({reason: 1} if reason else {})


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, None),
        ({"topic": "Unknown"}, "destination"),
        ({"text": "DELAY\x011\x02"}, "messages"),
        ({"properties": "WAIT\x01false\x02"}, "properties"),
        ({"reconsume_times": 1}, "header"),
    ],
)
def test_declined_batches_are_counted_by_reason(fields: dict[str, Any], reason: str | None) -> None:
    assert declined(batch_frame(**fields), is_batch=True) == ({reason: 1} if reason else {})


def test_a_send_near_a_limit_is_counted_as_declined() -> None:
    limits: dict[str, Any] = {
        "pending_bytes_max": 1_800,
        "pending_connection_bytes_max": 1_800,
        "max_message_size_bytes": 900,
    }
    send = message(b"b" * 900, f"a\x01{'v' * 400}\x02")

    assert declined(encode_frame(send), **limits) == {"limit": 1}
