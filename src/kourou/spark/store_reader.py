"""Reads of a store directory: planned by files of the commit log, read in parallel by tasks.

The store is neither opened nor locked nor changed, so a broker may use it meanwhile; then it is
read up to the end that was durable when the read was planned (`kourou.store.tools.log_parts`).
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from kourou.disk import Disk, OsDisk
from kourou.errors import ConfigError, StoreUnusableError
from kourou.model.topic import is_system_topic
from kourou.protocol.record.layout import BLANK_BYTES, RECORD_START
from kourou.spark.log_runs import LogRun, single_run, verified_run
from kourou.spark.positions import Time
from kourou.spark.pulled_records import MARGIN_BYTES
from kourou.spark.range_reader import freeze_once
from kourou.spark.read_options import ReadOptions
from kourou.spark.store_rows import RecordChoice, StoreRows
from kourou.spark.worker_errors import text_first
from kourou.store.log.log_walk import LogPiece, PieceKind
from kourou.store.paths import COMMITLOG
from kourou.store.tools.log_parts import (
    DeletedTopics,
    LogPart,
    LogPlan,
    missing_pieces,
    pack_parts,
    plan_log,
    walk_part,
)

log = logging.getLogger(__name__)

PART_BYTES: Final = 128 * 1024 * 1024
"""Size of a task: about half a second. Spark's own file sources split files at the same size."""

_CHUNK_BYTES: Final = 4 * 1024 * 1024
_WINDOW_BYTES_MIN: Final = 64 * 1024
"""Bytes verified at once after damage, so that frequent damage is not read again and again."""
_WINDOW_GROWTH: Final = 4


class StoreReader(DataSourceReader):  # type: ignore[misc]  # PySpark is Any to us
    """Reader of one DataFrame: plans in Spark's planning process, is pickled, reads in workers."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        assert options.source.store_path is not None
        # The working directories of the workers are others.
        self._path = str(Path(options.source.store_path).expanduser().absolute())
        self._options = options
        self._columns = tuple(columns)

    @text_first
    def partitions(self) -> list[InputPartition]:
        """Return one partition for each task; its value is a `LogPlan` with the task's parts.

        Raises:
            ConfigError: storePath is no store directory, or storeTopics names another topic than
                its own.
            StoreLockedError: a broker uses the store, and its durable end is unknown.
            StoreUnusableError: a file cannot be read.
        """
        options = self._options
        begin_ms, end_ms = _time_bounds(options)
        with self._disk("this machine") as disk:
            plan = plan_log(
                disk,
                part_bytes=PART_BYTES,
                parts_min=options.min_partitions or 1,
                begin_ms=begin_ms,
                end_ms=None if end_ms is None else end_ms - 1,
            )
        self._check_topics(plan.deleted)
        # Spark would turn an empty list into one partition with the value None.
        return [InputPartition(task) for task in pack_parts(plan, options.max_partitions) or [plan]]

    @text_first
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the partition's rows as Arrow batches.

        Raises:
            CodecMissingError: the package that decompresses a body is not installed.
            ConfigError: this machine does not see the store.
            StoreUnusableError: a file cannot be read.
        """
        freeze_once()
        plan: LogPlan = partition.value
        begin_ms, end_ms = _time_bounds(self._options)
        store = self._options.store
        choice = RecordChoice(
            topics=None if store.topics is None else frozenset(store.topics),
            deleted=None if store.include_deleted_topics else plan.deleted,
            include_system_topics=store.include_system_topics,
            begin_ms=begin_ms,
            end_ms=end_ms,
        )
        rows = StoreRows(self._options, self._columns, choice)
        with self._disk("a worker") as disk:
            for part in plan.parts:
                for found in read_part(disk, plan, part):
                    if isinstance(found, LogRun):
                        yield from rows.of_run(found)
                    elif "corrupt" in self._columns:
                        yield rows.of_damage(found)
                    else:
                        log.warning(
                            "spark_store.damaged path=%s position=%d bytes=%d problem=%s",
                            *(self._path, found.position, found.size, found.problem),
                        )

    def _check_topics(self, deleted: DeletedTopics) -> None:
        store = self._options.store
        if deleted.existing is None or store.include_deleted_topics:
            return  # any topic may have messages
        for topic in store.topics or ():
            if topic not in deleted.existing and not is_system_topic(topic):
                near = difflib.get_close_matches(topic, deleted.existing, n=1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise ConfigError(
                    f"storeTopics names {topic!r}, which the store does not have: {hint}Add "
                    ".option('includeDeletedTopics', 'true') if it was deleted"
                )

    @contextmanager
    def _disk(self, machine: str) -> Iterator[Disk]:
        """Yield the store's directory, which is closed afterwards."""
        if not Path(self._path, COMMITLOG).is_dir():
            raise ConfigError(
                f"storePath is {self._path!r}, but {machine} has no store there: name a directory "
                f"that contains {COMMITLOG}, and that each machine of the job sees"
            )
        disk = OsDisk(Path(self._path))
        try:
            yield disk
        except OSError as error:
            reason = f"{error.filename or 'a file'}: {error.strerror or error}"
            raise StoreUnusableError(self._path, f"storePath cannot be read: {reason}") from error
        finally:
            disk.close()


def read_part(disk: Disk, plan: LogPlan, part: LogPart) -> Iterator[LogRun | LogPiece]:
    """Yield the verified records of a part of the log in runs, and its damage as pieces.

    Raises:
        OSError: the file cannot be read.
    """
    missing = missing_pieces(disk, part)
    yield from missing
    if missing and missing[-1].end >= part.end:
        return
    reader = _PartReader(disk, plan, part)
    while (found := reader.next()) is not None:
        if isinstance(found, LogRun) or found.kind is PieceKind.DAMAGE:
            yield found


class _PartReader:
    """Reads one part of the log in large chunks."""

    def __init__(self, disk: Disk, plan: LogPlan, part: LogPart) -> None:
        self._disk = disk
        self._plan = plan
        self._part = part
        self._limit = part.file.start + plan.segment_bytes - BLANK_BYTES
        self._position = part.begin
        self._data = b""
        self._data_start = part.begin
        self._used_bytes = 0  # of the data; the rest is a margin
        self._window = _CHUNK_BYTES
        self._walk: Iterator[LogPiece] = iter(())
        self._walk_position = -1

    def next(self) -> LogRun | LogPiece | None:
        """Return the next run or piece; None at the end of the part."""
        position = self._position
        if position >= self._part.end:
            return None
        if not self._has_record(position):
            self._fill(position)
        at = position - self._data_start
        end = min(self._used_bytes, at + self._window, self._part.end - self._data_start)
        run = verified_run(self._data, at, end, position)
        if len(run):
            self._position = self._data_start + run.end
            self._window = min(self._window * _WINDOW_GROWTH, _CHUNK_BYTES)
            return run
        return self._general_piece(position)

    def _general_piece(self, position: int) -> LogRun | LogPiece | None:
        """Return what is at the position as the general walk over the log reads it."""
        self._window = _WINDOW_BYTES_MIN
        if self._walk_position != position:
            self._walk = walk_part(self._disk, self._plan, self._part, position)
        piece = next(self._walk, None)
        if piece is None:
            return None
        self._position = self._walk_position = piece.end
        if piece.header is None:
            return piece
        return single_run(piece.header.record(piece.buffer), position)

    def _has_record(self, position: int) -> bool:
        """Tell whether the data has all bytes of the record at the position, by its size."""
        at = position - self._data_start
        if at + RECORD_START.size > self._used_bytes:
            return False
        size: int = RECORD_START.unpack_from(self._data, at)[0]
        return at + size <= self._used_bytes

    def _fill(self, position: int) -> None:
        """Read the bytes from the position on, a whole record at least."""
        self._read(position, _CHUNK_BYTES)
        if self._used_bytes >= RECORD_START.size and not self._has_record(position):
            size = min(RECORD_START.unpack_from(self._data)[0], self._limit - position)
            if size > self._used_bytes:
                self._read(position, size)

    def _read(self, position: int, size: int) -> None:
        left = self._limit - position
        offset = position - self._part.file.start
        data = self._disk.read(self._part.file.name, offset, min(size + MARGIN_BYTES, left))
        self._data_start = position
        self._used_bytes = size
        if len(data) < size + MARGIN_BYTES:  # the end of the file
            self._used_bytes = len(data)
            data += bytes(MARGIN_BYTES)
        self._data = data


def _time_bounds(options: ReadOptions) -> tuple[int, int | None]:
    """Return the store times of startingTimestamp and endingTimestamp."""
    start, end = options.starting.for_all_queues, options.ending.for_all_queues
    return (
        start.at_ms if isinstance(start, Time) else 0,
        end.at_ms if isinstance(end, Time) else None,
    )
