"""Reports of tasks about what they have read, and their totals by batch. Pure.

A report is a datagram of fixed size, with integers in network byte order:

    version 1 | token 16 | query 16 | batch 8 | stage 4 | partition 4 | task 8 | attempt 4
    | rows 8 | pulled bytes 8 | pulls 8 | ms waited 8

Spark repeats a task that fails, and may run one twice. Both have the same stage and partition, and
the one that was started last counts.
"""

from __future__ import annotations

import hmac
import struct
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from kourou.errors import ProtocolError

VERSION: Final = 1

TOKEN_BYTES: Final = 16

_LAYOUT: Final = struct.Struct("!B16s16sQIIQIQQQQ")

REPORT_BYTES: Final = _LAYOUT.size

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties that Spark sets for the tasks of a streaming query."""

REPORTS_MAX: Final = 100_000
"""Maximum number of reports held: those of the batches that run now."""


@dataclass(slots=True)
class ReadCounts:
    """Counts of one read, updated while it runs.

    Attributes:
        rows: rows passed to Spark.
        pulled_bytes: size of the stored records in all answers.
        pulls: requests sent to brokers.
        waited_s: seconds in which the task waited for answers.
    """

    rows: int = 0
    pulled_bytes: int = 0
    pulls: int = 0
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TaskPosition:
    """Position of a task in Spark.

    Attributes:
        query: id of the streaming query.
        batch: number of the batch.
        stage: number of the stage in the Spark application; two reads of one batch differ in it.
        partition: number of the partition in the stage.
        task: number of the task in the application; a repeated task has a higher one.
        attempt: 0 unless Spark has repeated the task.
    """

    query: UUID
    batch: int
    stage: int
    partition: int
    task: int
    attempt: int


@dataclass(frozen=True, slots=True)
class ReadReport:
    """The counts of one task."""

    position: TaskPosition
    rows: int
    pulled_bytes: int
    pulls: int
    waited_ms: int


@dataclass(frozen=True, slots=True)
class TaskTotals:
    """Totals of the tasks of one batch.

    Attributes:
        tasks: number of tasks that reported.
        repeated_tasks: those of them that Spark ran again.
        rows: rows passed to Spark.
        pulled_bytes: size of the stored records in all answers, before any decompression.
        pulls: requests sent to brokers.
        waited_ms: milliseconds in which tasks waited for brokers, the sum over all tasks.
    """

    tasks: int
    repeated_tasks: int
    rows: int
    pulled_bytes: int
    pulls: int
    waited_ms: int


def encode_report(report: ReadReport, token: bytes) -> bytes:
    """Return the datagram of a report, for a receiver that accepts `token`."""
    position = report.position
    return _LAYOUT.pack(
        VERSION, token, position.query.bytes, position.batch, position.stage, position.partition,
        position.task, position.attempt,
        report.rows, report.pulled_bytes, report.pulls, report.waited_ms,
    )  # fmt: skip


def decode_report(datagram: bytes, token: bytes) -> ReadReport:
    """Return the report of a datagram.

    Raises:
        ProtocolError: the datagram has another version, size or token.
    """
    if len(datagram) != REPORT_BYTES:
        raise ProtocolError(f"a task report has {len(datagram)} bytes, not {REPORT_BYTES}")
    version, sent, query, *position, rows, pulled_bytes, pulls, waited_ms = _LAYOUT.unpack(datagram)
    if version != VERSION:
        raise ProtocolError(
            f"a task report has version {version}, this Kourou reads version {VERSION}: install "
            "the same version on the driver and on all executors"
        )
    if not hmac.compare_digest(sent, token):
        raise ProtocolError("a task report has the token of another session")
    where = TaskPosition(UUID(bytes=query), *position)
    return ReadReport(where, rows, pulled_bytes, pulls, waited_ms)


class ReportTable:
    """Reports of the batches that run now, until the end of each batch is known.

    Args:
        reports_max: maximum number of reports held; further ones are dropped.

    Attributes:
        dropped: number of reports dropped.
    """

    def __init__(self, reports_max: int = REPORTS_MAX) -> None:
        self._reports_max = reports_max
        self._held = 0
        self._queries: dict[UUID, dict[tuple[int, int, int], ReadReport]] = {}
        self.dropped = 0

    def add(self, report: ReadReport) -> None:
        """Hold a report, unless one of a later run of the same task is held."""
        where = report.position
        key = (where.batch, where.stage, where.partition)
        reports = self._queries.get(where.query, {})
        held = reports.get(key)
        if held is None:
            if self._held >= self._reports_max:
                self.dropped += 1
                return
            self._held += 1
            self._queries.setdefault(where.query, reports)
        elif held.position.task > where.task:
            return
        reports[key] = report

    def take(self, query: UUID, batch: int) -> TaskTotals | None:
        """Return the totals of a batch, and forget it and those before; None without a report."""
        reports = self._queries.pop(query, {})
        later = {key: report for key, report in reports.items() if key[0] > batch}
        if later:
            self._queries[query] = later
        self._held -= len(reports) - len(later)
        taken = [report for key, report in reports.items() if key[0] == batch]
        if not taken:
            return None
        return TaskTotals(
            tasks=len(taken),
            repeated_tasks=sum(report.position.attempt > 0 for report in taken),
            rows=sum(report.rows for report in taken),
            pulled_bytes=sum(report.pulled_bytes for report in taken),
            pulls=sum(report.pulls for report in taken),
            waited_ms=sum(report.waited_ms for report in taken),
        )

    def forget(self, query: UUID) -> None:
        """Drop all reports of a query, which ended or starts again."""
        self._held -= len(self._queries.pop(query, {}))
