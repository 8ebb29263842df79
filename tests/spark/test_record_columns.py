"""Both ways of decoding pulled records give equal rows; the general one is the client's."""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kourou.client.pull_result import PullResult, PullStatus
from kourou.errors import CodecMissingError, MalformedMessageError
from kourou.model.host import Host
from kourou.model.message import MessageExt
from kourou.model.properties import encode_properties
from kourou.model.queue import MessageQueue
from kourou.model.subscription import SubscriptionData
from kourou.model.sysflag import INNER_BATCH, NEED_UNWRAP
from kourou.protocol.codes import RequestCode
from kourou.protocol.compression import CompressionType, compress
from kourou.protocol.message_batch import BatchItem, encode_batch
from kourou.protocol.record.decode import UndecodableMessage
from kourou.protocol.record.encode import RecordDraft, encode_record, encode_sealed
from kourou.protocol.record.keys import message_count
from kourou.protocol.record.layout import MAGIC_BLANK, RECORD_START
from kourou.spark.property_columns import split_properties
from kourou.spark.record_columns import BATCH_BYTES, Answer, Decoded, decode_answers
from kourou.spark.schema import ALL_COLUMNS, arrow_schema, build_batch
from tests.golden_exchanges import exchanges
from tests.store import golden

QUEUE = MessageQueue("flights", "broker-a", 3)
ALL = tuple(ALL_COLUMNS)
EVERY_OFFSET = (-(1 << 63), (1 << 63) - 1)
V4, V6 = ("10.0.0.7", 50_000), ("2001:db8::7", 50_000)
PROPERTIES = b"KEYS\x01order-1\x02WAIT\x01true\x02TAGS\x01UA\x02UNIQ_KEY\x017F0000\x02"


@dataclass(frozen=True)
class Stored:
    """A stored message, before its encoding as a record."""

    body: bytes = b"body"
    properties: bytes = PROPERTIES
    topic: bytes = b"flights"
    born_host: Host = V4
    store_host: Host = ("10.0.0.1", 10_911)
    sys_flag: int = 0
    flag: int = -5
    born_at_ms: int = 1_385_000_000_123
    store_at_ms: int = 1_385_000_000_456
    is_sealed: bool = True

    def record(self, offset: int) -> bytes:
        draft = RecordDraft(
            self.topic, 3, self.flag, self.sys_flag, self.born_at_ms, self.born_host,
            self.store_host, 2, 0, self.body, self.properties,
        )  # fmt: skip
        encode = encode_sealed if self.is_sealed else encode_record
        return encode(draft, offset, offset * 1000 + 77, self.store_at_ms)


PLAIN = Stored()


def compressed(kind: CompressionType, body: bytes) -> Stored:
    return Stored(compress(body, kind=kind), sys_flag=kind.sys_flag)


def inner_batch(count: int, sys_flag: int = 0) -> Stored:
    items = [BatchItem(n, b"inner-%d" % n, b"TAGS\x01T%d\x02" % n) for n in range(count)]
    return Stored(
        encode_batch(items),
        PROPERTIES + b"INNER_NUM\x01%d\x02" % count,
        sys_flag=NEED_UNWRAP | INNER_BATCH | sys_flag,
    )


def answer(*records: bytes, start: int = EVERY_OFFSET[0], until: int = EVERY_OFFSET[1]) -> Answer:
    return Answer(QUEUE, b"".join(records), start, until)


def pulled(messages: Sequence[Stored], first: int = 100) -> bytes:
    return b"".join(message.record(first + number) for number, message in enumerate(messages))


# The general way


@dataclass
class Outcome:
    """The messages of one answer as the client decodes them.

    Attributes:
        stop: the offset at which it stopped before the answer's end.
        is_refused: whether it raised an error, because there was no message before that offset.
    """

    messages: list[MessageExt] = field(default_factory=list)
    undecodable: list[UndecodableMessage] = field(default_factory=list)
    stop: int | None = None
    is_refused: bool = False


def decode_generally(one: Answer, tags: frozenset[str] | None, namespace: str) -> Outcome:
    result = PullResult(
        one.queue,
        PullStatus.FOUND,
        next_offset=0,
        min_offset=0,
        max_offset=0,
        raw=one.raw,
        subscription=SubscriptionData(one.queue.topic, tags_set=tags or frozenset()),
        pulled_offset=one.start,
        namespace=namespace,
    )
    try:
        resume = result.decode().resume_offset
    except (MalformedMessageError, CodecMissingError):
        return Outcome(is_refused=True)
    stop = None if resume is None else max(resume, one.start)
    messages = [m for m in result.readable if one.start <= m.queue_offset < one.until]
    undecodable = [
        bad
        for bad in result.undecodable
        if bad.message.queue_offset < one.until
        and bad.message.queue_offset + offsets_of(bad.message) > one.start
    ]
    is_behind = stop is not None and stop >= one.until
    return Outcome(messages, undecodable, None if is_behind else stop)


def offsets_of(message: MessageExt) -> int:
    return message_count(message.sys_flag, encode_properties(message.properties))


def assert_both_ways_agree(
    answers: Sequence[Answer],
    names: Sequence[str] = ALL,
    tags: frozenset[str] | None = None,
    namespace: str = "",
) -> Decoded:
    outcomes = [decode_generally(one, tags, namespace) for one in answers]
    expected = build_batch([m for outcome in outcomes for m in outcome.messages], names)

    decoded = decode_answers(answers, names, tags=tags, namespace=namespace)

    for batch in decoded.batches:
        batch.validate(full=True)
    table = pa.Table.from_batches(decoded.batches, arrow_schema(names))
    for name in names:
        assert table[name].equals(pa.chunked_array([expected[name]])), name
    assert decoded.rows == [len(outcome.messages) for outcome in outcomes]
    undecodable = [bad for outcome in outcomes for bad in outcome.undecodable]
    assert [bad.message for bad in decoded.undecodable] == [bad.message for bad in undecodable]
    for index, outcome in enumerate(outcomes):
        stop = decoded.stops.get(index)
        if outcome.is_refused:
            # Records without messages, such as empty batches, are skipped by this way only.
            assert stop is None or (stop.error is not None and stop.offset >= answers[index].start)
            assert stop is not None or answers[index].until < EVERY_OFFSET[1]
        else:
            assert (None if stop is None else stop.offset) == outcome.stop
    return decoded


# Ordinary records


@pytest.mark.parametrize(
    "messages",
    [
        [PLAIN] * 3,
        [PLAIN, replace(PLAIN, topic=b"t" * 200), PLAIN],
        [replace(PLAIN, born_host=born, store_host=V4) for born in (V4, V6, V4)],
        [replace(PLAIN, born_host=born, store_host=V6) for born in (V4, V6, V4)],
        [replace(PLAIN, born_host=V6, store_host=store) for store in (V6, V4, V6, V4)],
        [replace(PLAIN, topic=topic) for topic in (b"a", b"b", b"%RETRY%g", "ä".encode())],
        [replace(PLAIN, body=b"")],
        [replace(PLAIN, body=bytes(range(256)) * 8)],
        [replace(PLAIN, is_sealed=False), PLAIN],
        [replace(PLAIN, born_at_ms=ms, store_at_ms=-ms) for ms in (0, 1, 1 << 62, (1 << 63) - 1)],
        [replace(PLAIN, flag=flag) for flag in (0, -(1 << 31), (1 << 31) - 1)],
        [replace(PLAIN, sys_flag=flag) for flag in (2, 4, 8, 12, 0x700)],
        [],
    ],
    ids=[
        "equal", "long topic", "addresses", "v6", "brokers", "topics", "no body", "binary body",
        "unsealed", "times", "flags", "sys flags", "nothing",
    ],
)  # fmt: skip
def test_ordinary_records_become_rows_without_message_objects(
    messages: list[Stored], monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = pulled(messages)
    decoded = assert_both_ways_agree([answer(raw)])
    assert sum(decoded.rows) == len(messages)

    # The general way fails on any codec, also on none.
    monkeypatch.setattr("kourou.spark.record_columns.decode_pull_response", None)
    assert decode_answers([answer(raw)], ALL) == decoded


@pytest.mark.parametrize(
    "keys",
    [
        b"k1", b"k1 k2", b" k1  k2 ", b" ", b"\t k1\nk2\x1f", "é k2".encode(),
        "k1\u3000k2".encode(), b"k1\xff k2", "k1\x85k2".encode(),
    ],
)  # fmt: skip
def test_keys_are_the_words_of_their_property(keys: bytes) -> None:
    others = [PLAIN, replace(PLAIN, properties=b"UNIQ_KEY\x01u\x02")]
    one = replace(PLAIN, properties=b"KEYS\x01" + keys + b"\x02UNIQ_KEY\x01u\x02")

    assert_both_ways_agree([answer(pulled([*others, one, *others]))])


@pytest.mark.parametrize(
    "properties",
    [
        b"",
        b"a\x01b\x02",
        PROPERTIES[:-1],
        PROPERTIES + b"a\x01\x02",
        PROPERTIES + b"\x01a\x02",
        PROPERTIES + b"a\x02",
        PROPERTIES + b"a\x01b\x01c\x02",
        PROPERTIES + b"a\x01b\x02a\x01c\x02",
        PROPERTIES + b"TAGS\x01AA\x02",
        PROPERTIES + b"long-name\x01b\x02long-name\x01c\x02",
        PROPERTIES + b"long-name-1-x\x01b\x02long-name-2-x\x01c\x02",
        PROPERTIES + b"a\x01\xff\x02",
        PROPERTIES + b"\xc3\x01\xa9\x02",
        PROPERTIES + "é\x01ü\x02".encode(),
        PROPERTIES + b"RETRY_TOPIC\x01ns%origin\x02",
        b"\x02" + PROPERTIES,
        b"\x01\x02",
    ],
)
@pytest.mark.parametrize("namespace", ["", "ns"])
def test_properties_are_read_as_the_client_reads_them(properties: bytes, namespace: str) -> None:
    one = replace(PLAIN, properties=properties, topic=b"ns%flights")
    raw = pulled([PLAIN, one, PLAIN, replace(one, is_sealed=False), PLAIN])

    assert_both_ways_agree([answer(raw)], namespace=namespace)
    for name in ("properties", "tags", "keys", "msgId", "body"):
        assert_both_ways_agree([answer(raw)], [name], namespace=namespace)


def test_checksum_of_the_store_is_hidden() -> None:
    decoded = decode_answers([answer(pulled([PLAIN]))], ["properties"])

    [row] = decoded.batches[0].to_pylist(maps_as_pydicts="strict")
    assert row["properties"] == {
        "KEYS": "order-1",
        "WAIT": "true",
        "TAGS": "UA",
        "UNIQ_KEY": "7F0000",
    }


# Other records


@pytest.mark.parametrize("kind", CompressionType)
def test_compressed_bodies_are_inflated(kind: CompressionType) -> None:
    one = compressed(kind, b"x" * 5000)

    decoded = assert_both_ways_agree([answer(pulled([one, PLAIN, PLAIN, one]))])

    assert decoded.batches[0]["body"].to_pylist()[3] == b"x" * 5000
    assert set(decoded.batches[0]["sysFlag"].to_pylist()) == {0, kind.sys_flag & ~1}


@pytest.mark.parametrize("kind", CompressionType)
def test_compressed_bodies_are_not_inflated_for_a_read_without_them(kind: CompressionType) -> None:
    good = compressed(kind, b"body" * 2_000)
    bad = replace(good, body=b"not a stream")
    names = tuple(name for name in ALL if name != "body")

    decoded = decode_answers([answer(pulled([PLAIN, good]))], names)
    [whole] = decode_answers([answer(pulled([PLAIN, good]))], ALL).batches

    assert decoded.batches == [whole.select(names)]
    assert decode_answers([answer(pulled([bad]))], ALL).undecodable
    assert not decode_answers([answer(pulled([bad]))], names).undecodable
    assert decode_answers([answer(pulled([bad]))], names).rows == [1]


def test_missing_codec_ends_the_answer_at_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    one = compressed(CompressionType.ZSTD, b"x" * 5000)
    monkeypatch.setitem(sys.modules, "zstandard", None)  # makes the import fail

    decoded = assert_both_ways_agree([answer(pulled([PLAIN, one, PLAIN])), answer(pulled([PLAIN]))])

    assert isinstance(decoded.stops[0].error, CodecMissingError)
    assert decoded.rows == [1, 1]


def test_inner_batch_is_cut_at_the_ends_of_the_range() -> None:
    raw = pulled([PLAIN]) + inner_batch(5).record(101) + pulled([PLAIN], 106)

    decoded = assert_both_ways_agree(
        [answer(raw, start=103), answer(raw, until=104), answer(raw, start=103, until=105)]
    )

    assert decoded.rows == [4, 4, 2]
    offsets = [row["queueOffset"] for batch in decoded.batches for row in batch.to_pylist()]
    assert offsets == [103, 104, 105, 106, 100, 101, 102, 103, 103, 104]


@pytest.mark.parametrize(
    "one",
    [
        inner_batch(0),
        inner_batch(3, CompressionType.ZLIB.sys_flag),
        replace(inner_batch(3), body=b"damaged"),
        replace(PLAIN, sys_flag=INNER_BATCH),
        replace(PLAIN, sys_flag=NEED_UNWRAP),
        replace(PLAIN, sys_flag=CompressionType.ZLIB.sys_flag),
        replace(PLAIN, sys_flag=0x401),
    ],
    ids=["empty", "zipped", "damaged", "no unwrap", "no batch", "not zipped", "unknown codec"],
)
@pytest.mark.parametrize("start", [99, 101, 102, 103, 104, 105])
def test_rare_records_are_decoded_as_by_the_client(one: Stored, start: int) -> None:
    raw = pulled([PLAIN, one, PLAIN]) + pulled([PLAIN], 110)

    for until in (101, 102, 103, 111, 120):
        assert_both_ways_agree([answer(raw, start=start, until=until)])


def test_message_with_a_wrong_checksum_has_no_row_and_is_reported() -> None:
    damaged = PLAIN.record(101).replace(b"body", b"BODY")

    decoded = assert_both_ways_agree([answer(PLAIN.record(100), damaged, PLAIN.record(102))])

    assert decoded.rows == [2]
    [(message, error)] = decoded.undecodable
    assert (message.queue_offset, message.broker_name) == (101, "broker-a")
    assert "checksum" in str(error)


def test_message_with_a_wrong_checksum_outside_of_the_range_is_ignored() -> None:
    damaged = PLAIN.record(101).replace(b"body", b"BODY")

    decoded = assert_both_ways_agree([answer(PLAIN.record(100), damaged, until=101)])

    assert (decoded.rows, decoded.undecodable) == ([1], [])


@pytest.mark.parametrize("cut", [1, 50, 100, 150])
def test_torn_end_is_pulled_again_from_its_offset(cut: int) -> None:
    raw = pulled([PLAIN] * 3)

    decoded = assert_both_ways_agree([answer(raw[:-cut]), answer(raw)])

    assert decoded.rows == [2, 3]
    assert decoded.stops[0].offset == 102
    assert isinstance(decoded.stops[0].error, MalformedMessageError)


def test_torn_end_behind_the_range_is_ignored() -> None:
    decoded = assert_both_ways_agree([answer(pulled([PLAIN] * 3)[:-1], until=102)])

    assert (decoded.rows, decoded.stops) == ([2], {})


def test_unreadable_head_ends_its_answer_only() -> None:
    raw = pulled([PLAIN])
    bad_topic = PLAIN.record(101).replace(b"flights", b"fl\xffghts")

    decoded = assert_both_ways_agree(
        [answer(raw), answer(b"\0" * 200, start=7), answer(raw, bad_topic, raw), answer(raw)]
    )

    assert decoded.rows == [1, 0, 1, 1]
    assert {index: stop.offset for index, stop in decoded.stops.items()} == {1: 7, 2: 101}


@pytest.mark.slow
def test_inflated_bodies_of_a_call_are_bounded() -> None:
    bomb = compressed(CompressionType.ZLIB, bytes(60 << 20))
    decoded = decode_answers(
        [answer(pulled([PLAIN, bomb, bomb])), answer(pulled([bomb, PLAIN] * 3))], ["body"]
    )

    assert decoded.rows == [3, 4]
    assert list(decoded.stops) == [1]
    assert (decoded.stops[1].offset, decoded.stops[1].error) == (104, None)


# Batches, filters


def test_batch_ends_when_its_bodies_reach_the_limit() -> None:
    body = bytes(BATCH_BYTES // 3 - 100)
    zipped = compressed(CompressionType.ZLIB, body)
    messages = [replace(PLAIN, body=body), zipped] * 4

    decoded = assert_both_ways_agree([answer(pulled(messages)), answer(pulled([zipped] * 2))])

    sizes = [sum(map(len, batch["body"].to_pylist())) for batch in decoded.batches]
    assert all(size < BATCH_BYTES + len(body) for size in sizes)
    assert sum(sizes) == 10 * len(body)
    assert decoded.rows == [8, 2]


def test_tags_are_compared_exactly() -> None:
    tagged = [
        replace(PLAIN, properties=b"TAGS\x01" + tag + b"\x02UNIQ_KEY\x01u\x02")
        for tag in (b"Aa", b"BB", b"C")  # the first two have the same hash
    ]
    untagged = replace(PLAIN, properties=b"UNIQ_KEY\x01u\x02")
    zipped = replace(tagged[0], body=zlib.compress(b"x"), sys_flag=1)
    raw = pulled([*tagged, untagged, zipped, *tagged])

    decoded = assert_both_ways_agree([answer(raw)] * 2, ["tags", "body"], frozenset({"Aa", "C"}))

    assert decoded.rows == [5, 5]
    assert_both_ways_agree([answer(raw)], ["queueOffset"], frozenset({"none"}))


def test_rows_name_the_broker_of_their_answer() -> None:
    one, other = answer(pulled([PLAIN])), answer(pulled([PLAIN, PLAIN]))
    other = replace(other, queue=replace(QUEUE, broker_name="broker-b"))

    decoded = assert_both_ways_agree([one, other, one])

    [batch] = decoded.batches
    names = ["broker-a", "broker-b", "broker-b", "broker-a"]
    assert batch["brokerName"].to_pylist() == names


def test_no_answers_make_no_batches() -> None:
    assert decode_answers([], ALL) == Decoded()
    assert decode_answers([answer(), answer()], ALL) == Decoded(rows=[0, 0])


# Arbitrary and recorded records

text = st.text(st.sampled_from("aé \x01\x02\uffff"), max_size=6).map(str.encode)
names_of_properties = st.sampled_from(
    [b"TAGS", b"KEYS", b"UNIQ_KEY", b"RETRY_TOPIC", b"a", b"b-long-name"]
)
properties_texts = st.lists(
    st.one_of(
        st.tuples(names_of_properties, text | st.just(b"ns%o")).map(lambda p: b"%b\x01%b\x02" % p),
        st.binary(max_size=5),
    ),
    max_size=6,
).map(b"".join)
hosts = st.sampled_from([V4, V6, ("255.0.0.1", -1)])
messages_stored = st.one_of(
    st.just(PLAIN),
    st.builds(
        Stored,
        body=st.binary(max_size=40),
        properties=properties_texts | st.just(PROPERTIES),
        topic=st.sampled_from([b"flights", b"t" * 130, "ns%ä".encode(), b"\xff", b""]),
        born_host=hosts,
        store_host=hosts,
        sys_flag=st.sampled_from([0, 0, 0, 8, 1, INNER_BATCH, NEED_UNWRAP, 0xC0]),
        flag=st.integers(-(1 << 31), (1 << 31) - 1),
        born_at_ms=st.integers(*EVERY_OFFSET),
        is_sealed=st.booleans(),
    ),
    st.builds(compressed, st.sampled_from(CompressionType), st.binary(max_size=40)),
    st.builds(inner_batch, st.integers(0, 4), st.sampled_from([0, CompressionType.ZLIB.sys_flag])),
)
offsets = st.integers(95, 110)
answers_pulled = st.builds(
    lambda messages, start, until: answer(pulled(messages), start=start, until=until),
    st.lists(messages_stored, max_size=8),
    offsets | st.just(EVERY_OFFSET[0]),
    offsets | st.just(EVERY_OFFSET[1]),
)
tag_sets = st.sampled_from([None, None, frozenset({"UA"}), frozenset({"aé", "none"})])


@given(st.lists(answers_pulled, max_size=4), tag_sets, st.sampled_from(["", "ns"]))
def test_both_ways_agree_on_arbitrary_messages(
    answers: list[Answer], tags: frozenset[str] | None, namespace: str
) -> None:
    assert_both_ways_agree(answers, tags=tags, namespace=namespace)


@given(
    one=answers_pulled,
    changes=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=3),
    cut=st.integers(0, 200) | st.just(0),
)
@settings(max_examples=400)
def test_both_ways_agree_on_mutated_answers(
    one: Answer, changes: list[tuple[int, int]], cut: int
) -> None:
    raw = bytearray(one.raw)
    for at, byte in changes if raw else []:
        raw[at % len(raw)] = byte
    mutated = replace(one, raw=bytes(raw[: len(raw) - cut] if cut else raw))

    assert_both_ways_agree([answer(pulled([PLAIN])), mutated, answer(pulled([PLAIN] * 2))])


def test_both_ways_agree_on_every_changed_byte_of_a_record() -> None:
    record = PLAIN.record(101)
    for at in range(len(record)):
        mutated = [
            record[:at] + bytes((byte,)) + record[at + 1 :]
            for byte in (0, 1, 2, 0x7F, 0x80, 0xFF, record[at] ^ 1)
        ]
        assert_both_ways_agree(
            [answer(PLAIN.record(100), one, PLAIN.record(102)) for one in mutated]
        )


def test_both_ways_agree_on_recorded_pulls() -> None:
    codes = {RequestCode.PULL_MESSAGE, RequestCode.POP_MESSAGE, RequestCode.LITE_PULL_MESSAGE}
    answers = [
        answer(exchange.response.command.body)
        for exchange in exchanges().values()
        if exchange.response is not None and exchange.code in codes
    ]

    decoded = assert_both_ways_agree(answers)
    assert sum(decoded.rows) > 50
    assert not decoded.stops


@pytest.mark.parametrize("name", golden.NAMES)
def test_both_ways_agree_on_the_logs_of_a_java_broker(name: str) -> None:
    log = golden.load(name).log_bytes()
    runs, at, first, records = [], 0, 0, 0
    while at < len(log):
        size, magic = RECORD_START.unpack_from(log, at)
        if magic == MAGIC_BLANK:  # the rest of a segment
            runs.append(log[first:at])
            first = at + size
        else:
            records += 1
        at += size
    answers = [answer(run) for run in (*runs, log[first:]) if run]

    decoded = assert_both_ways_agree(answers)
    assert sum(decoded.rows) >= records > 10


def test_split_of_regular_texts_equals_the_clients() -> None:
    rng = random.Random(7)
    names = [f"n{number}" for number in range(9)] + ["KEYS", "TAGS", "UNIQ_KEY", "é"]
    maps = [
        {name: f"v {rng.random()}" for name in rng.sample(names, rng.randrange(len(names)))}
        for _ in range(300)
    ]
    columns, irregular = split_properties([encode_properties(one) for one in maps])

    assert not len(irregular)
    assert [dict(pairs) for pairs in columns.maps().to_pylist()] == maps
