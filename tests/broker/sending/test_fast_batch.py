"""The fast path of batches produces the files, answers and counts of the general path."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from kourou.broker.config import FlushDiskType
from kourou.broker.sending.batch_columns import BatchReader
from kourou.model.properties import encode_properties
from kourou.model.topic import TopicConfig
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.frame import encode_frame
from kourou.protocol.message_batch import BatchItem, encode_batch
from kourou.store.config import StoreConfig
from kourou.store.tools.check import check_store
from kourou.testing.disk import SimDisk
from kourou.testing.lone_connection import LoneConnection
from kourou.testing.loop import run_virtual
from kourou.testing.send_rig import SendRig, message
from kourou.testing.simulated_broker import SimulatedBroker, small_config
from tests.broker.sending.test_fast_send import assert_same, cut, plain_frames, run_both
from tests.golden_exchanges import exchanges

_UNIQUE_IDS = ("0A00000100010000000018B4AAC20001", "0A0000010001000000001", "0A é", "", "A" * 32)
_NAMES = (
    "TAGS", "KEYS", "WAIT", "DELAY", "TRAN_MSG", "INNER_MULTI_DISPATCH", "__LITE_TOPIC",
    "__SHARDINGKEY", "__CRC32#", "x__CRC32#", "TIMER_DELAY_MS", "TIMER_DELIVER_MS",
    "TIMER_DELAY_SEC", "UNIQ_KEY", "xUNIQ_KEY", "MYKEYS", "user", "é", "", "INNER_NUM",
    "INNER_MULTI_QUEUE_OFFSET", "MSG_REGION",
)  # fmt: skip
_VALUES = (
    "true", "false", "1", "0", "-1", "TagA", "k1 k2", "", "é", "a\x01b", "a" * 300,
    "UNIQ_KEY\x01" + "B" * 32, "__CRC32#", "TAGS\x01TagB",
)  # fmt: skip


def item_text(rng: Random, unusual_share: float) -> bytes:
    """Return a message's property text, unusual with a probability of `unusual_share`."""
    properties = {"UNIQ_KEY": f"{rng.getrandbits(128):032X}", "WAIT": "true", "TAGS": "TagA"}
    if rng.random() < 0.3:
        properties["order"] = f"{rng.getrandbits(rng.randrange(1, 64))}"
    if rng.random() < 0.3:
        properties["KEYS"] = rng.choice((f"k{rng.getrandbits(20)}", "é", "a\x01b", "__CRC32#"))
    if rng.random() < unusual_share:
        properties["UNIQ_KEY"] = rng.choice(_UNIQUE_IDS)
    while rng.random() < unusual_share:
        properties[rng.choice(_NAMES)] = rng.choice(_VALUES)
    order = list(properties.items())
    if rng.random() < unusual_share:
        rng.shuffle(order)
    text = encode_properties(dict(order))
    if rng.random() < unusual_share / 4:
        text = rng.choice(
            (text[:-1], text + text, text + b"x", b"\x02" + text, b"", text + b"a\x01\x02",
             text + b"KEYS\x01\xff\x02", b"a" * 32_747, b"a\x01" + b"b" * 32_760 + b"\x02")
        )  # fmt: skip
    return text[:32_767]


def random_batch(rng: Random) -> bytes:
    """Return a batch's body: plain in most cases, with uniform messages in half of the cases."""
    unusual_share = 0.2 if rng.random() < 0.15 else 0.0
    count = rng.choice((1, 2, 3, 8, 32))
    size = rng.choice((0, 1, 100, 1000))
    if rng.random() < 0.5:
        flag = rng.choice((0, 7, -1))
        text = item_text(rng, unusual_share)
        id_at = text.find(b"UNIQ_KEY\x01") + 9
        texts = [text] + [
            text[:id_at] + f"{rng.getrandbits(128):032X}".encode() + text[id_at + 32 :]
            if id_at >= 9 and len(text) > id_at + 32
            else text
            for _ in range(count - 1)
        ]
        items = [BatchItem(flag, rng.randbytes(size), text) for text in texts]
    else:
        items = [
            BatchItem(rng.choice((0, 0, 3)), rng.randbytes(rng.randrange(300)),
                      item_text(rng, unusual_share))
            for _ in range(count)
        ]  # fmt: skip
    body = bytearray(encode_batch(items))
    if rng.random() < 0.1:
        at = rng.randrange(len(body))
        body[at] ^= 1 << rng.randrange(8)
    if rng.random() < 0.05:
        body = rng.choice((body[:-1], body + b"\0", body[: len(body) // 2], bytearray()))
    return bytes(body)


def random_command(rng: Random) -> RemotingCommand:
    """Return a batch: plain in most cases, unusual in some."""
    properties = {"UNIQ_KEY": f"{rng.getrandbits(128):032X}", "WAIT": "true"}
    odd = rng.random() < 0.2
    if odd:
        properties["UNIQ_KEY"] = rng.choice(_UNIQUE_IDS)
        properties[rng.choice(_NAMES)] = rng.choice(_VALUES)
    if rng.random() < 0.2:
        del properties["UNIQ_KEY"]
    header: dict[str, Any] = {
        "topic": rng.choice(("T", "Long", "Batched", "L" * 127, "New", "%RETRY%g", "TBW102"))
        if odd
        else "T",
        "queue_id": rng.choice((0, 1, 2, 3, 4, 7, 8)) if odd else rng.randrange(3),
        "sys_flag": rng.choice((0, 1, 2, 4, 8, 0x10, 0x301, 0x80)) if rng.random() < 0.1 else 0,
        "flag": rng.choice((0, 7, -1)) if odd else 0,
        "born_timestamp": rng.choice((0, -1, 1_700_000_000_123)) if odd else 1_700_000_000_000,
        "reconsume_times": rng.choice((0, 0, 3)) if odd else 0,
        "unit_mode": odd and rng.random() < 0.1,
        "batch": rng.random() < 0.8,
        "max_reconsume_times": rng.choice((None, None, 5)) if odd else None,
    }
    return message(
        random_batch(rng),
        encode_properties(properties).decode(),
        code=RequestCode.SEND_BATCH_MESSAGE,
        oneway=rng.random() < 0.03,
        **header,
    )


def random_frame(rng: Random) -> bytes:
    """Return the frame of a random batch or send, in some cases with a bit flipped."""
    if rng.random() < 0.2:
        return plain_frames(1 + rng.randrange(4))[-1]
    command = random_command(rng)
    command.opaque = rng.choice((rng.getrandbits(31), 0, -1, -(1 << 31)))
    frame = bytearray(encode_frame(command))
    if rng.random() < 0.05:
        frame[rng.randrange(8, len(frame))] ^= 1 << rng.randrange(8)
    return bytes(frame)


@pytest.mark.parametrize("flush", FlushDiskType)
@pytest.mark.parametrize("seed", range(30))
def test_random_batches_have_the_same_outcome_on_both_paths(
    seed: int, flush: FlushDiskType
) -> None:
    rng = Random(seed)
    frames = plain_frames(4) + [random_frame(rng) for _ in range(60)]
    store = StoreConfig(commitlog_segment_bytes=1 << 18)
    assert_same(
        cut(rng, frames),
        seed=seed,
        flush_disk_type=flush,
        store=store,
        max_message_size_bytes=1 << 16,
    )


@pytest.mark.parametrize("name", [name for name in sorted(exchanges()) if name.startswith("320_")])
def test_recorded_batches_have_the_same_outcome_on_both_paths(name: str) -> None:
    frame = exchanges()[name].request.frame
    assert_same([frame, frame + frame])


def batch_frame(
    number: int = 0,
    *,
    count: int = 32,
    body: Callable[[int], bytes] = lambda _: b"b" * 100,
    text: str = "UNIQ_KEY\x01%s\x02WAIT\x01true\x02",
    keys: Callable[[int], str] = lambda _: "",
    **header: Any,
) -> bytes:
    """Return the frame of a plain batch for a queue of `T`; `text` formats a unique id and keys."""
    items = []
    for i in range(count):
        of_text = {"%s": f"{number:016X}{i:016X}", "%k": keys(i)}
        some = text
        for name, value in of_text.items():
            some = some.replace(name, value)
        items.append(BatchItem(0, body(i), some.encode()))
    values: dict[str, Any] = {
        "properties": f"UNIQ_KEY\x01{number:032X}\x02WAIT\x01true\x02",
        "queue_id": number % 4,
        "batch": True,
    } | header
    command = message(encode_batch(items), code=RequestCode.SEND_BATCH_MESSAGE, **values)
    command.opaque = 1000 + number
    return encode_frame(command)


@pytest.mark.parametrize(
    "text",
    [
        *(f"UNIQ_KEY\x01%s\x02{name}\x01true\x02" for name in _NAMES),
        *(f"UNIQ_KEY\x01%s\x02{name}\x013\x02" for name in ("DELAY", "TIMER_DELAY_SEC")),
        "TAGS\x01UNIQ_KEY\x01%s\x02",
        "xUNIQ_KEY\x01%s\x02TAGS\x01a\x02",
        "UNIQ_KEY\x01%s\x02KEYS\x01\xe9\x02",
        "KEYS\x01a b\x02UNIQ_KEY\x01%s\x02KEYS\x01c\x02",
    ],
)
def test_unusual_batch_properties_have_the_same_outcome_on_both_paths(text: str) -> None:
    frames = []
    for sizes in ((1, 1, 1), (1, 2, 3)):
        items = [
            BatchItem(0, b"b" * n, (text % f"{i:032X}").encode("latin-1"))
            for i, n in enumerate(sizes)
        ]
        frames.append(encode_frame(message(encode_batch(items), "UNIQ_KEY\x01A\x02", code=320)))
    assert_same([*plain_frames(4), *frames])


_KEYED = (
    "KEYS\x01%k\x02UNIQ_KEY\x01%s\x02TAGS\x01TagA\x02",
    "UNIQ_KEY\x01%s\x02WAIT\x01true\x02KEYS\x01%k\x02",
    "a\x01b\x02UNIQ_KEY\x01%s\x02KEYS\x01%k\x02TAGS\x01TagA\x02",
    "KEYS\x01%k\x02TAGS\x01TagA\x02",
)
_KEYS_OF_A_BATCH: tuple[Callable[[int], str], ...] = (
    lambda i: f"order-{i}",
    lambda i: f"order-{i:05}",
    lambda _: "same",
    lambda i: "two keys" if i == 20 else f"order-{i:02}",
    lambda i: "a\x02b\x01c" if i == 20 else f"key-{i:02}"[-5:],
    lambda i: "a\x01bcd" if i == 20 else f"key{i:02}",
    lambda i: "é" if i == 20 else f"{i:02}",
    lambda i: "" if i == 20 else f"k{i}",
)


@pytest.mark.parametrize("text", _KEYED)
@pytest.mark.parametrize("keys", _KEYS_OF_A_BATCH)
def test_keys_have_the_same_outcome_on_both_paths(text: str, keys: Callable[[int], str]) -> None:
    frames = [
        batch_frame(number, text=text, keys=keys, body=body)
        for number in range(3)
        for body in (lambda _: b"b" * 100, lambda i: b"b" * i)
    ]
    others = [batch_frame(9, text=_KEYED[number], keys=str) for number in range(2)]
    assert_same([*plain_frames(4), *frames, *others])


_VARYING = (
    "order\x01%k\x02UNIQ_KEY\x01%s\x02WAIT\x01true\x02",
    "UNIQ_KEY\x01%s\x02TAGS\x01%k\x02order\x01%k\x02",
    "KEYS\x01%k\x02order\x01%k\x02UNIQ_KEY\x01%s\x02TAGS\x01TagA\x02",
    "UNIQ_KEY\x01%s\x02order\x01%k\x02KEYS\x01%k\x02",
    "order\x01%k\x02KEYS\x01%k\x02TAGS\x01TagA\x02",
)


@pytest.mark.parametrize("text", _VARYING)
@pytest.mark.parametrize("values", _KEYS_OF_A_BATCH)
def test_values_that_vary_have_the_same_outcome_on_both_paths(
    text: str, values: Callable[[int], str]
) -> None:
    frames = [
        batch_frame(number, text=text, keys=values, body=body)
        for number in range(3)
        for body in (lambda _: b"b" * 100, lambda i: b"b" * i)
    ]
    assert_same([*plain_frames(4), *frames])


@pytest.mark.parametrize(
    "header",
    [{"properties": "UNIQ_KEY\x01A\x02WAIT\x01false\x02"}, {"body": lambda _: b"b" * 3000}],
)
def test_unusual_batches_have_the_same_outcome_on_both_paths(header: dict[str, Any]) -> None:
    assert_same([*plain_frames(4), batch_frame(**header)], max_message_size_bytes=1 << 16)


def taken(frames: list[bytes]) -> int:
    """Return how many bytes of the frames the fast path accepts; the queues of `T` exist."""
    found: list[int] = []

    async def main() -> None:
        broker = SimulatedBroker(SimDisk(), config=small_config())
        rig = SendRig(broker)
        await broker.topics.persist()
        lone = rig.connect(is_fast=True)
        lone.receive_bytes(b"".join(plain_frames(4)))  # creates the queues on the general path
        data = bytearray(b"".join(frames))
        found.append(rig.fast_path(lone.connection, data, 0, len(data)))
        await asyncio.sleep(1)
        await broker.stop()

    run_virtual(main())
    return found[0]


@pytest.mark.parametrize(
    "frame",
    [
        batch_frame(),
        batch_frame(count=1),
        batch_frame(count=600),
        batch_frame(body=lambda i: b"b" * i),
        batch_frame(batch=False),
        batch_frame(sys_flag=1),
        batch_frame(properties="WAIT\x01true\x02"),
        batch_frame(text="KEYS\x01%k\x02UNIQ_KEY\x01%s\x02", keys=lambda i: f"order-{i}"),
        batch_frame(text="UNIQ_KEY\x01%s\x02TAGS\x01a\x02KEYS\x01%k\x02", keys=lambda _: "a b"),
        batch_frame(text="TAGS\x01%k\x02UNIQ_KEY\x01%s\x02", keys=lambda i: f"Tag{i % 3}"),
        batch_frame(text="TAGS\x01a\x02"),
    ],
)
def test_plain_batches_take_the_fast_path(frame: bytes) -> None:
    rest = batch_frame()[:100]
    assert taken([frame, frame, rest]) == 2 * len(frame)


@pytest.mark.parametrize("text", _VARYING)
def test_a_long_batch_with_other_values_in_each_message_takes_the_fast_path(text: str) -> None:
    text += f"padding\x01{'p' * 900}\x02"
    frame = batch_frame(count=200, text=text, keys=lambda i: f"order-{i}")
    assert taken([frame]) == len(frame)


def test_all_batches_of_one_read_are_answered_in_one_write() -> None:
    async def main() -> None:
        broker = SimulatedBroker(SimDisk(), config=small_config())
        rig = SendRig(broker)
        await broker.topics.persist()
        lone = rig.connect(is_fast=True)
        lone.receive_bytes(b"".join(plain_frames(4)))
        await asyncio.sleep(1)
        lone.transport.writes.clear()
        lone.receive_bytes(b"".join(batch_frame(number) for number in range(5)))
        assert not lone.transport.writes, "nothing is acknowledged before it is synced"
        await asyncio.sleep(1)
        assert len(lone.transport.writes) == 1
        assert [answer.opaque for answer in lone.sent()] == list(range(1000, 1005))
        await broker.stop()

    run_virtual(main())


def test_a_batch_is_not_split_at_the_end_of_a_segment() -> None:
    frames = plain_frames(4) + [batch_frame(n, body=lambda _: b"b" * 300) for n in range(20)]
    store = StoreConfig(commitlog_segment_bytes=1 << 16)
    fast = assert_same([b"".join(frames)], store=store, max_message_size_bytes=1 << 15)
    assert len([name for name in fast.files() if name.startswith("commitlog/")]) > 2


@pytest.mark.parametrize(
    "limits",
    [
        {"pending_requests_max": 5},
        {"pending_bytes_max": 20_000, "pending_connection_bytes_max": 20_000},
        {"pending_connection_bytes_max": 16_000},
    ],
)
def test_both_paths_refuse_the_same_requests_above_a_limit(limits: dict[str, int]) -> None:
    options = {"max_message_size_bytes": 8_000} | limits
    fast = assert_same([*plain_frames(4), b"".join(map(batch_frame, range(16)))], **options)
    assert b"[OVERLOAD]" in fast.answers


def test_batches_for_extended_queues_have_the_same_outcome_on_both_paths() -> None:
    store = StoreConfig(consumequeue_extension=True)
    frames = [*plain_frames(4), b"".join(map(batch_frame, range(8))), *plain_frames(8)[4:]]
    fast = assert_same(frames, store=store)
    assert any(name.startswith("consumequeue_ext/T/") for name in fast.files())


def test_large_batches_have_the_same_outcome_on_both_paths() -> None:
    frames = [batch_frame(number, count=600) for number in range(3)]
    assert b'"code":0' in assert_same([*plain_frames(4), *frames]).answers


def test_a_failed_write_refuses_its_messages() -> None:
    async def test(rig: SendRig, lone: LoneConnection) -> None:
        lone.receive_bytes(b"".join(plain_frames(4)))
        await asyncio.sleep(1)
        rig.broker.disk.fail_after(0, OSError(errno.EIO, "broken"), operations=("write",))
        lone.receive_bytes(b"".join(map(batch_frame, range(3))))
        await asyncio.sleep(1)

    fast, slow = run_both(test)
    assert fast == slow
    assert [answer.code for answer in fast[4:]] == [14, 14, 14]


def test_messages_refused_by_a_full_disk_are_not_indexed() -> None:
    disk = SimDisk()

    async def main() -> None:
        broker = SimulatedBroker(disk, config=small_config())
        rig = SendRig(broker)
        await broker.topics.persist()
        lone = rig.connect(is_fast=True)
        lone.receive_bytes(b"".join([*plain_frames(4), *map(batch_frame, range(4))]))
        await asyncio.sleep(1)
        disk.fail_after(0, OSError(errno.ENOSPC, "full"), operations=("write",))
        lone.receive_bytes(b"".join(map(batch_frame, range(4, 8))))
        await asyncio.sleep(1)
        broker.store.writer.flush(broker.clock.now_ms())
        lone.receive_bytes(batch_frame(8, body=lambda i: b"b" * i))
        await asyncio.sleep(1)
        assert [answer.code for answer in lone.sent()] == [0] * 8 + [14] * 4 + [0]
        await broker.stop()

    run_virtual(main())
    assert check_store(disk).findings == []


def test_a_late_sync_is_answered_with_flush_disk_timeout() -> None:
    async def test(rig: SendRig, lone: LoneConnection) -> None:
        lone.receive_bytes(b"".join(plain_frames(4)))
        await asyncio.sleep(1)
        rig.broker.flusher.stall()
        lone.receive_bytes(b"".join(map(batch_frame, range(3))))
        await asyncio.sleep(20)

    fast, slow = run_both(test)
    assert fast == slow
    assert [answer.code for answer in fast[4:]] == [10, 10, 10]


def test_a_changed_topic_invalidates_the_cache() -> None:
    async def test(rig: SendRig, lone: LoneConnection) -> None:
        lone.receive_bytes(b"".join(plain_frames(4)) + batch_frame(1))
        await asyncio.sleep(1)
        rig.broker.topics.put(TopicConfig("T", 1, 1))
        lone.receive_bytes(batch_frame(1))
        await asyncio.sleep(1)

    fast, slow = run_both(test)
    assert fast == slow
    assert [answer.code for answer in fast[4:]] == [0, 29]


def test_shapes_and_layouts_are_bounded() -> None:
    reader = BatchReader()
    for number in range(3000):
        text = f"UNIQ_KEY\x01{number:032X}\x02user\x01{number}\x02".encode()
        items = [BatchItem(0, b"b" * number, text)] * 2
        columns = reader.read(memoryview(encode_batch(items)), b"\x01T", 1000)
        assert columns is not None
        assert columns.records.bodies == (b"b" * number,) * 2
    assert reader.shape_count <= 2048
    assert reader.layout_count <= 1024
    for size in range(1, 3000):
        text = f"UNIQ_KEY\x01{'A' * 32}\x02user\x01{'v' * size}\x02".encode()
        items = [BatchItem(0, b"b", text), BatchItem(0, b"bb", text)]
        columns = reader.read(memoryview(encode_batch(items)), b"\x01T", 1000)
        assert columns is not None
        assert columns.records.bodies == (b"b", b"bb")
    assert reader.layout_count <= 1024


def test_decoding_of_a_batchs_properties_is_bounded_on_the_fast_path() -> None:
    def read(count: int) -> bool:
        texts = [b"n%d\x01%b\x02" % (number, b"v" * 990) for number in range(count)]
        items = [BatchItem(0, b"x" * (1 + number % 2), text) for number, text in enumerate(texts)]
        return BatchReader().read(memoryview(encode_batch(items)), b"\x01T", 1000) is not None

    assert read(120)
    assert not read(140)
