"""Tests of runs of verified records: they agree with the decoder of single records."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import MalformedMessageError
from kourou.protocol.record.encode import encode_record, encode_sealed
from kourou.protocol.record.layout import BLANK_BYTES, HEAD_BYTES, RecordHeader, encode_blank
from kourou.protocol.record.read import read_checked
from kourou.spark.log_runs import LogRun, single_run, verified_run
from kourou.spark.pulled_records import MARGIN_BYTES
from tests.store import golden
from tests.store.rig import draft

BASE = 1 << 33


def log_of(count: int, seed: int = 0) -> bytes:
    """Return records of all kinds, which begin at position BASE of the log."""
    chance = random.Random(seed)
    data = b""
    for number in range(count):
        topic = chance.choice(["T", "orders", "ü" * 50, "long" * 40])
        one = draft(chance.randbytes(chance.randrange(300)), topic=topic, queue_id=number % 3)
        if chance.random() < 0.4:
            one = replace(one, born_host=("2001:db8::7", 4000))
        if chance.random() < 0.4:
            one = replace(one, store_host=("2001:db8::8", 5000))
        if chance.random() < 0.2:
            one = replace(one, properties=b"")
        elif chance.random() < 0.2:  # ends like a seal
            one = replace(one, properties=b"sent-at\x011700000000\x02")
        elif chance.random() < 0.3:  # as Java writes them, without the last separator
            one = replace(one, properties=one.properties.rstrip(b"\x02"))
        encode = chance.choice([encode_record, encode_sealed])
        data += encode(one, number, BASE + len(data), 1_000 + number)
    return data


def headers(data: bytes, position: int = BASE) -> list[RecordHeader]:
    """Return the headers up to the first record that is not valid."""
    found: list[RecordHeader] = []
    at = 0
    while at < len(data):
        try:
            header = read_checked(data, at)
        except MalformedMessageError:
            break
        if header.physical_offset != position + at:
            break
        found.append(header)
        at += header.total_size
    return found


def run_of(data: bytes, position: int = BASE, at: int = 0, end: int | None = None) -> LogRun:
    end = len(data) if end is None else end
    return verified_run(data + bytes(MARGIN_BYTES), at, end, position)


def fields(run: LogRun) -> list[tuple[object, ...]]:
    names = ("queue_id", "queue_offset", "sys_flag", "store_at_ms")
    columns = (run.sizes, run.positions, *map(run.numbers, names))
    lists = [column.tolist() for column in columns]
    return list(zip(*lists, [run.topics[index] for index in run.topic], strict=True))


def fields_of(found: list[RecordHeader]) -> list[tuple[object, ...]]:
    return [
        (
            one.total_size,
            one.physical_offset,
            one.queue_id,
            one.queue_offset,
            one.sys_flag,
            one.store_at_ms,
            one.topic,
        )
        for one in found
    ]


def test_records_of_all_kinds_are_verified_in_one_run() -> None:
    data = log_of(300)
    run = run_of(data)

    assert len(run) == 300
    assert fields(run) == fields_of(headers(data))
    assert run.end == len(data)


@given(
    seed=st.integers(0, 20),
    changes=st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 255)), max_size=3),
    cut=st.integers(0, 200),
)
def test_a_run_of_mutated_bytes_ends_where_the_single_decoder_does_or_before(
    seed: int, changes: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(log_of(12, seed))
    for at, value in changes:
        data[at % len(data)] = value
    mutated = bytes(data[: len(data) - cut])

    expected, found = fields_of(headers(mutated)), fields(run_of(mutated))

    assert found == expected[: len(found)]


@pytest.mark.parametrize("bit", range(8))
def test_every_flipped_bit_that_the_single_decoder_finds_ends_the_run(bit: int) -> None:
    data = log_of(3, seed=5)
    for at in range(len(data)):
        mutated = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]

        found = fields(run_of(mutated))

        assert found == fields_of(headers(mutated))[: len(found)]


@pytest.mark.parametrize("name", golden.NAMES)
def test_a_java_log_is_verified_in_whole_runs(name: str) -> None:
    recorded = golden.load(name)
    segment_bytes = recorded.config.commitlog_segment_bytes
    for file, data in sorted(recorded.files.items()):
        if "commitlog/" not in file:
            continue
        start = int(file.rpartition("/")[2])
        run = run_of(data[: segment_bytes - BLANK_BYTES], start)

        assert fields(run) == fields_of(headers(data, start))


def test_a_run_has_no_record_that_ends_after_its_end() -> None:
    data = log_of(20)
    ends = [one.physical_offset + one.total_size - BASE for one in headers(data)]

    for number, end in enumerate(ends, 1):
        assert len(run_of(data, end=end)) == number
        assert len(run_of(data, end=end - 1)) == number - 1


def test_a_run_begins_at_any_byte_of_its_data() -> None:
    data = log_of(20)
    second = headers(data)[0].total_size

    assert fields(run_of(data, BASE + second, second)) == fields_of(headers(data))[1:]


def test_a_run_of_one_record_has_its_fields() -> None:
    data = log_of(1)

    assert fields(single_run(data, BASE)) == fields_of(headers(data))


@pytest.mark.parametrize(
    "data",
    [b"", b"\0" * 500, encode_blank(500) + bytes(492), b"\xff" * 500, bytes(HEAD_BYTES)],
    ids=["nothing", "zeros", "blank", "ones", "half a head"],
)
def test_other_bytes_are_an_empty_run(data: bytes) -> None:
    assert len(run_of(data)) == 0
