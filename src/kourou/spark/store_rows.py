"""Rows of a read of a store directory: messages of verified records, and corrupt ranges. Pure.

A corrupt range of the log has a row of its own, whose only values are its position, its size and
the problem. A message whose body cannot be decoded has a row with the body as it is stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from kourou.errors import ConfigError
from kourou.model.sysflag import TRANSACTION_PREPARED
from kourou.model.topic import is_system_topic
from kourou.spark.body_format import BodyDecoder, read_columns
from kourou.spark.log_runs import LogRun
from kourou.spark.option_table import BadBodyMode
from kourou.spark.property_columns import Integers
from kourou.spark.read_options import ColumnOptions, ReadOptions
from kourou.spark.record_columns import BATCH_ROWS, DecodedRecords, decode_records
from kourou.spark.schema import STORE_COLUMNS, Column, build_batch
from kourou.store.log.log_walk import LogPiece
from kourou.store.tools.log_parts import DeletedTopics

_NEVER: Final = 1 << 62
_ADDED: Final = frozenset((*STORE_COLUMNS, "brokerName"))
"""Columns that the decoder of records does not make."""
_DECODED_ANYWAY: Final = ("queueId",)
"""What is decoded where a read has only other columns, because the decoder counts the rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordChoice:
    """The records of which a read has rows.

    Attributes:
        topics: their topics; None for all.
        deleted: the deleted topics; None to include their messages.
        include_system_topics: also records that have no queue.
        begin_ms: lowest store time, epoch milliseconds.
        end_ms: the store time at which the read ends, excluded; None: no limit.
    """

    topics: frozenset[str] | None = None
    deleted: DeletedTopics | None
    include_system_topics: bool = False
    begin_ms: int = 0
    end_ms: int | None = None

    def shown_from(self, topic: str) -> int:
        """Return the position in the log from which records of the topic are shown."""
        if self.topics is not None and topic not in self.topics:
            return _NEVER
        is_system = is_system_topic(topic)
        if is_system and not self.include_system_topics:
            return _NEVER
        end = 0 if self.deleted is None else self.deleted.end_of(topic)
        if end is None:  # system topics may have no config
            return 0 if is_system else _NEVER
        return end

    def chosen(self, run: LogRun) -> Integers:
        """Return the indexes of the chosen records of a run."""
        shown_from = np.array([self.shown_from(topic) for topic in run.topics], np.int64)
        is_chosen = run.positions >= shown_from[run.topic]
        times = run.numbers("store_at_ms")
        if self.begin_ms:
            is_chosen &= times >= self.begin_ms
        if self.end_ms is not None:
            is_chosen &= times < self.end_ms
        if not self.include_system_topics:
            # As `is_visible`: prepared and rolled back records have no queue.
            is_chosen &= run.numbers("sys_flag") & TRANSACTION_PREPARED == 0
        return np.flatnonzero(is_chosen)


def store_columns(options: ColumnOptions) -> dict[str, Column]:
    """Return the columns of a read of a store by name, in their order.

    Raises:
        ConfigError: bodySchema does not parse, or columnNameOfCorruptRecord names another column.
    """
    if options.corrupt_column in STORE_COLUMNS:
        raise ConfigError(
            f"columnNameOfCorruptRecord is {options.corrupt_column!r}, which is the name of "
            "another column: choose a different one"
        )
    return read_columns(options) | STORE_COLUMNS


class StoreRows:
    """Builds the Arrow batches of a read.

    Args:
        options: the options of the read.
        names: the columns, in their order.
        choice: the records of which the read has rows.
    """

    def __init__(self, options: ReadOptions, names: Sequence[str], choice: RecordChoice) -> None:
        columns = store_columns(options.columns)
        self._bodies = BodyDecoder(options.columns, names, columns)
        # The body of a corrupt message is neither a failure nor a reason to omit its row.
        lenient = replace(options.columns, mode=BadBodyMode.PERMISSIVE)
        self._corrupt_bodies = BodyDecoder(lenient, names, columns)
        self._broker_name = options.store.broker_name
        self._choice = choice
        decoded = [name for name in self._bodies.record_names if name not in _ADDED]
        self._decoded_names = tuple(decoded) or _DECODED_ANYWAY

    def of_run(self, run: LogRun) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the chosen records of a run.

        Raises:
            CodecMissingError: the package that decompresses a body is not installed.
        """
        chosen = self._choice.chosen(run)
        while len(chosen):
            decoded = decode_records(run.records, chosen, self._decoded_names)
            record = decoded.record
            yield from self._batches(decoded, run.positions[record], run.sizes[record])
            chosen = chosen[
                len(chosen) if decoded.stop is None else chosen.searchsorted(decoded.stop) :
            ]

    def of_damage(self, piece: LogPiece) -> pa.RecordBatch:
        """Return the row of a corrupt range of the log."""
        values = {
            "commitLogOffset": piece.position,
            "storeSize": piece.size,
            "corrupt": piece.problem,
        }
        schema = self._bodies.schema
        arrays = [pa.array([values.get(field.name)], field.type) for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _batches(
        self, decoded: DecodedRecords, positions: Integers, sizes: Integers
    ) -> Iterator[pa.RecordBatch]:
        """Yield the decoded rows with all columns; undecodable messages come last."""
        at = 0
        for batch in decoded.batches:
            end = at + len(batch)
            bounds = pa.array(positions[at:end]), pa.array(sizes[at:end])
            rows = self._bodies.convert(self._with_store_columns(batch, *bounds))
            for first in range(0, len(rows), BATCH_ROWS):
                yield rows.slice(first, BATCH_ROWS)
            at = end
        for message, error in decoded.undecodable:
            batch = build_batch([message], self._decoded_names)
            bounds = pa.array([message.physical_offset]), pa.array([message.store_size])
            problem = f"the body cannot be decoded: {error}"
            row = self._with_store_columns(batch, *bounds, problem)
            yield self._corrupt_bodies.convert(row)

    def _with_store_columns(
        self,
        batch: pa.RecordBatch,
        positions: pa.Array,
        sizes: pa.Array,
        problem: str | None = None,
    ) -> pa.RecordBatch:
        """Return the decoded rows with those columns that the decoder does not know."""
        arrays = {name: batch.column(name) for name in batch.schema.names}
        arrays |= {"commitLogOffset": positions, "storeSize": sizes}
        for name, value in (("brokerName", self._broker_name), ("corrupt", problem)):
            arrays[name] = pa.repeat(pa.scalar(value, pa.string()), len(batch))
        chosen = {name: arrays[name] for name in self._bodies.record_names}
        return pa.RecordBatch.from_arrays(list(chosen.values()), names=list(chosen))
