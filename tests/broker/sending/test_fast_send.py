"""The fast path of sends produces the files, answers and counts of the general path."""

from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from kourou.broker.config import FlushDiskType
from kourou.broker.statistics.stats_samples import Window
from kourou.model.properties import encode_properties
from kourou.model.property_limits import SENT_PROPERTIES_SIZE_MAX
from kourou.model.topic import TopicConfig
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.frame import encode_frame
from kourou.protocol.message_batch import BatchItem, encode_batch
from kourou.remoting.limits import ConnectionLimits
from kourou.store.config import StoreConfig
from kourou.store.tools.check import check_store
from kourou.testing.disk import SimDisk
from kourou.testing.lone_connection import LoneConnection
from kourou.testing.loop import run_virtual
from kourou.testing.send_rig import SendRig, message
from kourou.testing.simulated_broker import SimulatedBroker, small_config
from tests.golden_exchanges import exchanges

ALL_BYTES = ConnectionLimits().unanswered_bytes_max
ALL_REQUESTS = ConnectionLimits().unanswered_requests_max
_UNIQUE_IDS = ("0A00000100010000000018B4AAC20001", "0A0000010001000000001", "0A é", "", "A" * 32,
    "01BACE0B9B6C4E3C0104C8D39900000001", "A" * 300)  # fmt: skip
_NAMES = (
    "TAGS", "KEYS", "WAIT", "DELAY", "TRAN_MSG", "INNER_NUM", "INNER_MULTI_DISPATCH",
    "__LITE_TOPIC", "_SYS_MSG_PRIORITY_", "__SHARDINGKEY", "MSG_REGION", "TRACE_ON", "CLUSTER",
    "__CRC32#", "POP_CK", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "UNIQ_KEY", "MYKEYS", "user", "é",
    "", "INNER_MULTI_QUEUE_OFFSET", "BORN_TIMESTAMP",
)  # fmt: skip
_VALUES = ("true", "false", "1", "TagA", "k1 k2", "", "é", "a\x01b", "a" * 300, '"quoted\\"', "%d")


class Outcome:
    """Files, answers and statistics of a broker after it received some bytes.

    Attributes:
        files: files of its store after a stop; index files, named by times, are numbered.
        answers: bytes that it wrote, in order.
        stats: its counters.
    """

    def __init__(self, disk: SimDisk, connection: LoneConnection, broker: SimulatedBroker) -> None:
        self.answers = b"".join(connection.transport.writes)
        self.ending = connection.transport.ending
        broker.stats.sample(10_000)
        self.stats: list[object] = [
            broker.stats.values(name, key, Window.MINUTE)
            for name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE")
            for key in ("T", "Long")
        ] + [broker.stats.sizes, broker.stats.store.put_failures, broker.stats.store.put_messages]
        self.stats.append(broker.transactions.counts.open_by_topic())
        unanswered = connection.connection.unanswered
        self.is_all_answered = unanswered.has_room(ALL_BYTES, ALL_REQUESTS)
        self.pending = broker.commit.pending_puts[0], broker.commit.pending_bytes
        self._disk = disk

    def files(self) -> dict[str, bytes]:
        """Return name -> bytes of log and queues."""
        found = {
            f"index/{number}": self._disk.read(f"index/{name}", 0, 1 << 30)
            for number, name in enumerate(sorted(self._disk.list("index")))
        }
        waiting = ["commitlog", "consumequeue", "consumequeue_ext", "batchconsumequeue"]
        while waiting:
            name = waiting.pop()
            try:
                found[name] = self._disk.read(name, 0, 1 << 30)
            except IsADirectoryError:
                waiting += [f"{name}/{inner}" for inner in self._disk.list(name)]
            except FileNotFoundError:
                pass
        return found


def outcome(chunks: list[bytes], *, is_fast: bool, seed: int, **options: Any) -> Outcome:
    """Pass each chunk to a broker as one read, several of them in some loop iterations."""
    disk = SimDisk(seed)
    found: list[Outcome] = []

    async def main() -> None:
        rng = Random(seed)
        broker = SimulatedBroker(disk, seed=seed, config=small_config(**options))
        rig = SendRig(broker)
        broker.topics.put(TopicConfig("Long", 8, 8))
        broker.topics.put(TopicConfig("Batched", 2, 2, attributes={"queue.type": "BatchCQ"}))
        broker.topics.put(TopicConfig("L" * 127, 2, 2))
        await broker.topics.persist()
        connection = rig.connect(is_fast=is_fast)
        for chunk in chunks:
            if connection.transport.ending:
                break
            connection.receive_bytes(chunk)
            if rng.random() < 0.7:
                await asyncio.sleep(rng.choice((0, 0, 0.001, 0.01)))
        await asyncio.sleep(30)
        found.append(Outcome(disk, connection, broker))
        broker.flusher.release()
        await broker.stop()

    run_virtual(main())
    return found[0]


def assert_same(chunks: list[bytes], *, seed: int = 0, **options: Any) -> Outcome:
    fast = outcome(chunks, is_fast=True, seed=seed, **options)
    slow = outcome(chunks, is_fast=False, seed=seed, **options)
    assert fast.answers == slow.answers
    assert fast.files() == slow.files()
    assert fast.ending == slow.ending
    assert fast.stats == slow.stats
    assert fast.is_all_answered == slow.is_all_answered
    assert fast.is_all_answered or fast.ending
    assert fast.pending == slow.pending == (0, 0)
    return fast


def random_command(rng: Random) -> RemotingCommand:
    """Return a send: plain in most cases, unusual in some."""
    properties = {"UNIQ_KEY": f"{rng.getrandbits(128):032X}", "WAIT": "true", "TAGS": "TagA"}
    if rng.random() < 0.5:
        properties["KEYS"] = f"k{rng.getrandbits(20)}"
    if rng.random() < 0.2:
        properties["UNIQ_KEY"] = rng.choice(_UNIQUE_IDS)
    if rng.random() < 0.2:
        del properties["UNIQ_KEY"]
    if rng.random() < 0.3:
        properties["BORN_TIMESTAMP"] = str(rng.getrandbits(41))
    while rng.random() < 0.3:
        properties[rng.choice(_NAMES)] = rng.choice(_VALUES)
    order = list(properties.items())
    rng.shuffle(order)
    text = encode_properties(dict(order)).decode()
    if rng.random() < 0.1:
        text = rng.choice(
            (text[:-1], text + text, text + "x", "\x02" + text, "", text + "a\x01\x02")
        )
    header: dict[str, Any] = {
        "topic": rng.choice(("T", "T", "Long", "Batched", "L" * 127, "New", "%RETRY%g", "TBW102")
                            if rng.random() < 0.3 else ("T",)),
        "queue_id": rng.choice((0, 1, 2, 3, 4, 7, 8, -1)) if rng.random() < 0.3 else 1,
        "sys_flag": rng.choice((0, 1, 2, 4, 8, 0x10, 0x301, 0x80)) if rng.random() < 0.2 else 0,
        "flag": rng.choice((0, 7, -1)) if rng.random() < 0.1 else 0,
        "born_timestamp": rng.choice((0, -1, 1_700_000_000_123)),
        "reconsume_times": rng.choice((0, 0, 0, 3)),
        "unit_mode": rng.random() < 0.05,
        "max_reconsume_times": rng.choice((None, None, None, 5)),
        "default_topic_queue_nums": rng.choice((4, 8, 16)),
    }  # fmt: skip
    body = rng.randbytes(rng.choice((0, 1, 100, 1024, 4000)))
    if rng.random() < 0.05:
        items = [BatchItem(0, b"b%d" % i, text.encode()) for i in range(rng.randrange(4))]
        return message(
            encode_batch(items), text, code=RequestCode.SEND_BATCH_MESSAGE, batch=True, **header
        )
    if rng.random() < 0.3:
        text, header["sys_flag"] = as_half(rng, text, header["sys_flag"])
    code = rng.choice((10, 310)) if rng.random() < 0.1 else 310
    return message(body, text, code=code, oneway=rng.random() < 0.05, **header)


def as_half(rng: Random, text: str, sys_flag: int) -> tuple[str, int]:
    """Return properties and flag of a half message: plain in most cases, unusual in some."""
    text = f"TRAN_MSG\x01true\x02{text}PGROUP\x01p\x02"
    if rng.random() < 0.1:
        text = text.replace("true", rng.choice(("True", "false", "")), 1)
    if rng.random() < 0.1:
        name = rng.choice(("REAL_TOPIC", "__transactionId__", "CHECK_IMMUNITY_TIME_IN_SECONDS"))
        text += f"{name}\x011\x02"
    if rng.random() < 0.05:
        text = text.replace("PGROUP\x01p\x02", "")
    return text, sys_flag | (rng.choice((0, 4, 8, 12)) if rng.random() < 0.1 else 4)


def random_frame(rng: Random) -> bytes:
    """Return the frame of a random send, in some cases with its bytes changed."""
    command = random_command(rng)
    command.opaque = rng.choice((rng.getrandbits(31), 0, -1, -(1 << 31)))
    frame = bytearray(encode_frame(command))
    if rng.random() < 0.15:
        words = ((b'"310"', b"310"), (b'"flag":0', b'"flag":2'), (b'"a":', b'"zz":'),
                 (b'"j":"0"', b'"j":0'), (b'"k":"false"', b'"k":"FALSE"'),
                 (b'"code":310,', b'"code": 310,'), (b'"e":"1"', b'"e":"01"'),
                 (b'"e":"1"', b'"e":"+1"'), (b'"h":"0"', b'"h":null'),
                 (b'"language":"PYTHON"', b'"language":"JAVA"'))  # fmt: skip
        old, new = rng.choice(words)
        changed = bytes(frame[8:]).replace(old, new, 1)
        grown = len(changed) - (len(frame) - 8)
        header_size = int.from_bytes(frame[4:8], "big") + grown
        frame[:] = (len(changed) + 4).to_bytes(4, "big") + header_size.to_bytes(4, "big") + changed
    elif rng.random() < 0.05:
        frame[rng.randrange(8, len(frame))] ^= 1 << rng.randrange(8)
    return bytes(frame)


def cut(rng: Random, frames: list[bytes]) -> list[bytes]:
    """Return the frames as reads: some of several frames, some of parts of a frame."""
    chunks, stream = [], b"".join(frames)
    while stream:
        size = rng.choice((len(frames[0]), rng.randrange(1, 9000), 20_000))
        chunks.append(stream[:size])
        stream = stream[size:]
    return chunks


@pytest.mark.parametrize("flush", FlushDiskType)
@pytest.mark.parametrize("seed", range(30))
def test_random_sends_have_the_same_outcome_on_both_paths(seed: int, flush: FlushDiskType) -> None:
    rng = Random(seed)
    chunks = cut(rng, [random_frame(rng) for _ in range(60)])
    assert_same(chunks, seed=seed, flush_disk_type=flush)


@pytest.mark.parametrize("name", [name for name in sorted(exchanges()) if name.startswith("310_")])
def test_recorded_sends_have_the_same_outcome_on_both_paths(name: str) -> None:
    frame = exchanges()[name].request.frame
    assert_same([frame, frame + frame])


OF_REMOTING = "UNIQ_KEY\x01{:032X}\x02WAIT\x01true\x02TAGS\x01TagA\x02"
OF_GRPC = (
    "BORN_TIMESTAMP\x0117328900{0:05}\x02TAGS\x01TagA\x02UNIQ_KEY\x0101{0:032X}\x02"
    "PGROUP\x01T\x02__BORNHOST\x0110.0.0.1\x02"
)


def plain_frames(
    count: int, body: bytes = b"b" * 100, properties: str = OF_REMOTING
) -> list[bytes]:
    frames = []
    for number in range(count):
        text = properties.format(number)
        command = message(body, text, queue_id=number % 4)
        command.opaque = 1000 + number
        frames.append(encode_frame(command))
    return frames


@pytest.mark.parametrize("properties", [OF_REMOTING, OF_GRPC])
def test_plain_sends_take_the_fast_path(properties: str) -> None:
    taken: list[int] = []

    async def main() -> None:
        broker = SimulatedBroker(SimDisk(), config=small_config())
        rig = SendRig(broker)
        await broker.topics.persist()
        lone = rig.connect(is_fast=True)
        lone.receive_bytes(b"".join(plain_frames(4)))  # creates the queues on the general path
        await asyncio.sleep(1)
        connection = lone.connection
        sent = plain_frames(5, properties=properties)
        frames = bytearray(b"".join([*sent, sent[0][:50]]))
        taken.append(rig.fast_path(connection, frames, 0, len(frames)) - len(frames) + 50)
        await asyncio.sleep(1)
        await broker.stop()

    run_virtual(main())
    assert taken == [0]


def test_sends_of_grpc_clients_have_the_same_outcome_on_both_paths() -> None:
    assert_same([b"".join(plain_frames(40, properties=OF_GRPC))])


def test_the_fast_path_adds_a_missing_unique_id() -> None:
    bare = [
        encode_frame(message(b"b" * 5_000, text, queue_id=number % 4))
        for number, text in enumerate(["", "TAGS\x01a\x02", "KEYS\x01k\x02a\x01b\x02"] * 10)
    ]
    longest = "a\x01" + "x" * (SENT_PROPERTIES_SIZE_MAX - 200)
    almost = [
        encode_frame(message(b"b", f"{longest}{'x' * size}\x02")) for size in range(150, 310, 10)
    ]
    store = StoreConfig(commitlog_segment_bytes=1 << 17, consumequeue_file_bytes=20 * 100)
    fast = assert_same(
        [b"".join(plain_frames(4)), b"".join(bare), *almost],
        store=store, max_message_size_bytes=1 << 15,
    )  # fmt: skip
    stored = re.findall(rb'"transactionId":"([0-9A-F]{32})"', fast.answers)
    assert 34 < len(set(stored)) == len(stored) < 50


def test_all_sends_of_one_read_are_answered_in_one_write() -> None:
    async def main() -> None:
        broker = SimulatedBroker(SimDisk(), config=small_config())
        rig = SendRig(broker)
        await broker.topics.persist()
        lone = rig.connect(is_fast=True)
        lone.receive_bytes(b"".join(plain_frames(64)))
        assert not lone.transport.writes, "nothing is acknowledged before it is synced"
        await asyncio.sleep(1)
        assert len(lone.transport.writes) == 1
        assert [answer.opaque for answer in lone.sent()] == list(range(1000, 1064))
        await broker.stop()

    run_virtual(main())


def test_the_log_rolls_to_its_next_segment_between_sends() -> None:
    frames = plain_frames(150, b"b" * 1000)
    store = StoreConfig(commitlog_segment_bytes=1 << 16, consumequeue_file_bytes=20 * 100)
    fast = assert_same(cut(Random(1), frames), store=store, max_message_size_bytes=1 << 15)
    assert len([name for name in fast.files() if name.startswith("commitlog/")]) > 2


@pytest.mark.parametrize(
    "limits",
    [
        {"pending_requests_max": 10},
        {"pending_bytes_max": 5_000, "pending_connection_bytes_max": 5_000},
        {"pending_connection_bytes_max": 3_000},
    ],
)
def test_both_paths_refuse_the_same_requests_above_a_limit(limits: dict[str, int]) -> None:
    options = {"max_message_size_bytes": 1_000} | limits
    fast = assert_same([b"".join(plain_frames(64))], **options)
    assert b"[OVERLOAD]" in fast.answers


Failing = Callable[[SendRig, LoneConnection], Awaitable[None]]


def run_both(test: Failing, **options: Any) -> list[list[RemotingCommand]]:
    """Run the test with and without the fast path, and return the answers of each."""
    answers = []

    async def main(*, is_fast: bool) -> None:
        broker = SimulatedBroker(SimDisk(), config=small_config(**options))
        rig = SendRig(broker)
        await broker.topics.persist()
        lone = rig.connect(is_fast=is_fast)
        await test(rig, lone)
        answers.append(lone.sent())
        broker.flusher.release()
        broker.abandon()

    for is_fast in (True, False):
        run_virtual(main(is_fast=is_fast))
    return answers


def test_a_failed_write_refuses_its_messages() -> None:
    async def test(rig: SendRig, lone: LoneConnection) -> None:
        rig.broker.disk.fail_after(0, OSError(errno.EIO, "broken"), operations=("write",))
        lone.receive_bytes(b"".join(plain_frames(3)))
        await asyncio.sleep(1)

    fast, slow = run_both(test)
    assert fast == slow
    assert [answer.code for answer in fast] == [14, 14, 14]


def indexed_frames(rng: Random, count: int) -> list[bytes]:
    """Return plain sends to one queue whose keys and tags differ."""
    frames = []
    for number in range(count):
        properties = {"UNIQ_KEY": f"{rng.getrandbits(128):032X}", "WAIT": "true"}
        for name, values in (("KEYS", ("order-7", "k" * 20, "two keys")), ("TAGS", ("A", "B é"))):
            if rng.random() < 0.9:
                properties[name] = values[rng.random() > 0.97]
        order = list(properties.items())
        rng.shuffle(order)
        command = message(b"x", encode_properties(dict(order)).decode(), queue_id=number % 2)
        frames.append(encode_frame(command))
    return frames


@pytest.mark.parametrize("seed", range(3))
def test_the_index_fed_by_the_fast_path_equals_that_of_the_general_path(seed: int) -> None:
    rng = Random(seed)
    fast = assert_same(cut(rng, indexed_frames(rng, 300)), seed=seed)
    assert fast.files()["index/0"]


def test_messages_refused_by_a_full_disk_are_not_indexed() -> None:
    disk = SimDisk()

    async def main() -> None:
        broker = SimulatedBroker(disk, config=small_config())
        rig = SendRig(broker)
        await broker.topics.persist()
        lone = rig.connect(is_fast=True)
        lone.receive_bytes(b"".join(indexed_frames(Random(1), 40)))
        await asyncio.sleep(1)
        disk.fail_after(0, OSError(errno.ENOSPC, "full"), operations=("write",))
        lone.receive_bytes(b"".join(indexed_frames(Random(2), 40)))
        await asyncio.sleep(1)
        broker.store.writer.flush(broker.clock.now_ms())
        await rig.send(properties=encode_properties({"KEYS": "between " * 20}).decode())
        lone.receive_bytes(b"".join(indexed_frames(Random(3), 40)))
        await asyncio.sleep(1)
        assert [answer.code for answer in lone.sent()] == [0] * 40 + [14] * 40 + [0] * 40
        await broker.stop()

    run_virtual(main())
    assert check_store(disk).findings == []


def test_a_late_sync_is_answered_with_flush_disk_timeout() -> None:
    async def test(rig: SendRig, lone: LoneConnection) -> None:
        rig.broker.flusher.stall()
        lone.receive_bytes(b"".join(plain_frames(3)))
        await asyncio.sleep(20)

    fast, slow = run_both(test)
    assert fast == slow
    assert [answer.code for answer in fast] == [10, 10, 10]
    assert {answer.ext_fields["KOUROU_DURABILITY"] for answer in fast} == {"MEMORY"}
