"""Stamps: identify the row of a Spark job that a message was made of. Pure.

    <write>:<batch>:<partition>:<row>    of a row without a key
    <write>:<batch>:=<key>               of a row with a key (option keyColumn)

`write` is the id of the streaming query or the option writeId, and contains no colon. Each message
that a job sends has its stamp as the property KOUROU_SPARK_ID. A task that Spark repeats sends its
rows again under the same stamps, provided that it computes the same rows in the same order. That
holds for a deterministic plan without a shuffle. Any other plan needs a key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

KEYED_PATTERN: Final = r"^[^:]*:\d+:="
"""Regular expression, of Python and Java, that matches stamps with a key."""


@dataclass(frozen=True, slots=True)
class Stamps:
    """Builds the stamps of one task.

    Attributes:
        write: the id of the streaming query, or the option writeId.
        batch: the number of the micro-batch; 0 for a batch write.
        partition: the number of the task's partition.
    """

    write: str
    batch: int
    partition: int

    def of_row(self, row: int) -> str:
        """Return the stamp of a row by its number in the partition."""
        return f"{self.write}:{self.batch}:{self.partition}:{row}"

    def of_key(self, key: str) -> str:
        """Return the stamp of a row by its key."""
        return f"{self.write}:{self.batch}:={key}"

    def describe(self, first: int, last: int | None = None) -> str:
        """Return the position of one row or several, for error texts."""
        rows = f"row {first}" if last in (None, first) else f"rows {first} to {last}"
        return f"{rows} of partition {self.partition} of batch {self.batch} of {self.write}"
