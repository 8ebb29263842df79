"""Parquet files of a send ledger: the columns of an entry, and a destination that writes them.

    ledger = SendLedger(ParquetLedger("ledger"), flush_interval_ms=10_000)

Needs pyarrow, not Spark. Each flush is one file, complete or absent; a longer flush interval makes
fewer files, and more entries that are lost if the process is killed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from kourou.client.instance import ClientInstance
from kourou.client.sending.ledger_entry import LedgerEntry
from kourou.remoting.runtime import Offload

_TYPES: Final[dict[Any, pa.DataType]] = {
    int: pa.int64(),
    int | None: pa.int64(),
    bool: pa.bool_(),
}

ENTRY_SCHEMA: Final = pa.schema(
    [
        (field.encode_name, _TYPES.get(field.type, pa.string()))
        for field in msgspec.structs.fields(LedgerEntry)
    ]
)
"""The columns of the entries; a field that has its default is null."""


def entry_batch(entries: Iterable[LedgerEntry]) -> pa.RecordBatch:
    """Return the entries as rows of `ENTRY_SCHEMA`."""
    rows = [msgspec.to_builtins(entry) for entry in entries]
    return pa.RecordBatch.from_pylist(rows, schema=ENTRY_SCHEMA)


class ParquetLedger:
    """A directory of Parquet files: a destination of `SendLedger`.

    Args:
        directory: created if it does not exist.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self._number = 0

    async def open(self, client: ClientInstance) -> None:
        self._offload: Offload = client.runtime.offload

    async def write(self, entries: Sequence[LedgerEntry]) -> None:
        """Write one file.

        Raises:
            OSError: it is not written.
        """
        self._number += 1
        run = re.sub(r"[^A-Za-z0-9.]+", "-", entries[0].run)
        file = self.directory / f"{run}-{self._number:06}.parquet"
        await self._offload(self._write, file, entries)

    async def close(self) -> None:
        """Do nothing: no file stays open between two writes."""

    @staticmethod
    def _write(file: Path, entries: Sequence[LedgerEntry]) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Readers of Parquet ignore names that begin with a dot.
        temporary = file.with_name(f".{file.name}.tmp")
        pq.write_table(pa.Table.from_batches([entry_batch(entries)]), temporary)
        temporary.replace(file)
