"""Tests of task reports: the datagram, and totals that count each task once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import ProtocolError
from kourou.spark.task_reports import (
    REPORT_BYTES,
    ReadReport,
    ReportTable,
    TaskPosition,
    TaskTotals,
    decode_report,
    encode_report,
)

QUERY, OTHER = UUID(int=1), UUID(int=2)
TOKEN = bytes(range(16))
POSITION = TaskPosition(query=QUERY, batch=7, stage=3, partition=1, task=40, attempt=0)
REPORT = ReadReport(POSITION, rows=100, pulled_bytes=5_000, pulls=4, waited_ms=12)

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
REPORTS = st.builds(
    ReadReport,
    st.builds(
        TaskPosition,
        query=st.uuids(),
        batch=U64,
        stage=U32,
        partition=U32,
        task=U64,
        attempt=U32,
    ),
    rows=U64,
    pulled_bytes=U64,
    pulls=U64,
    waited_ms=U64,
)


def at(rows: int = 100, **position: Any) -> ReadReport:
    return replace(REPORT, rows=rows, position=replace(POSITION, **position))


@given(REPORTS, st.binary(min_size=16, max_size=16))
def test_decoder_returns_what_was_encoded(report: ReadReport, token: bytes) -> None:
    assert decode_report(encode_report(report, token), token) == report


@given(st.binary(max_size=300) | st.binary(min_size=REPORT_BYTES, max_size=REPORT_BYTES))
def test_decoder_refuses_random_bytes(datagram: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_report(datagram, TOKEN)


def test_decoder_names_the_version_that_it_does_not_read() -> None:
    datagram = b"\x02" + encode_report(REPORT, TOKEN)[1:]

    with pytest.raises(ProtocolError, match="has version 2, this Kourou reads version 1: install"):
        decode_report(datagram, TOKEN)


def test_decoder_refuses_the_token_of_another_session() -> None:
    with pytest.raises(ProtocolError, match="token of another session"):
        decode_report(encode_report(REPORT, bytes(16)), TOKEN)


def test_totals_are_the_sums_over_the_tasks_of_a_batch() -> None:
    table = ReportTable()
    table.add(REPORT)
    table.add(at(rows=20, partition=2, task=41))
    table.add(at(rows=3, stage=4, task=42))  # another read in the same batch

    assert table.take(QUERY, 7) == TaskTotals(
        tasks=3, repeated_tasks=0, rows=123, pulled_bytes=15_000, pulls=12, waited_ms=36
    )
    assert table.take(QUERY, 7) is None


@pytest.mark.parametrize("is_reversed", [False, True])
def test_repeated_task_counts_once_by_its_last_run(is_reversed: bool) -> None:
    table = ReportTable()
    runs = [at(rows=60), at(rows=100, task=44, attempt=1)]
    for report in reversed(runs) if is_reversed else runs:
        table.add(report)
        table.add(report)  # a network may duplicate a datagram

    totals = table.take(QUERY, 7)

    assert totals is not None
    assert (totals.tasks, totals.repeated_tasks, totals.rows) == (1, 1, 100)


def test_queries_and_batches_are_apart() -> None:
    table = ReportTable()
    for report in (REPORT, at(rows=5, batch=8), at(rows=9, query=OTHER)):
        table.add(report)

    rows = [
        totals and totals.rows
        for totals in (table.take(QUERY, 7), table.take(QUERY, 8), table.take(OTHER, 7))
    ]

    assert rows == [100, 5, 9]


def test_table_is_bounded_and_has_room_again_when_batches_end() -> None:
    table = ReportTable(reports_max=2)
    for partition in range(4):
        table.add(at(partition=partition))
    table.add(at(rows=70, partition=1, task=50, attempt=1))  # replaces one that is held

    totals = table.take(QUERY, 7)
    assert totals is not None
    assert (totals.tasks, totals.rows, table.dropped) == (2, 170, 2)

    table.add(at(batch=8))
    table.add(at(batch=9))  # a report of an older batch that is late
    assert table.take(QUERY, 9) is not None
    table.add(at(batch=10))
    table.forget(QUERY)
    assert table.take(QUERY, 10) is None
    table.add(at(batch=11))
    table.add(at(batch=11, partition=2))
    assert table.dropped == 2
