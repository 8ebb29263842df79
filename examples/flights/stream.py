"""The Spark job of the demo: its process, and the batches that it has finished so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from children import Child
from data import AIRPORTS

SPARK_LIMIT_S: Final = 600.0


@dataclass(frozen=True)
class Window:
    """The flights of one batch.

    Attributes:
        first: earliest scheduled departure, as `YYYY-MM-DD HH:MM:SS`.
        last: latest scheduled departure.
        delays: airport -> mean delay at departure in minutes, None without a departure.
    """

    first: str
    last: str
    delays: Mapping[str, float | None]

    def __str__(self) -> str:
        days = dict.fromkeys((_day(self.first), _day(self.last)))
        delays = (
            f"{airport} {'-' if minutes is None else f'{minutes:.0f} min'}"
            for airport, minutes in self.delays.items()
        )
        return f"{' to '.join(days)}: {', '.join(delays)}"


class Stream:
    """Follows the job.

    Attributes:
        process: the job.
        rows: number of messages in finished batches; Spark has committed them.
        rows_per_second: rate of the last batch that had messages.
        window: the flights of that batch; None before the first.
    """

    def __init__(self, process: Child) -> None:
        self.process = process
        self.rows = 0
        self.rows_per_second = 0.0
        self.window: Window | None = None

    def wait_until_ready(self) -> None:
        """Wait for the first batch, which fixes where the stream begins.

        Raises:
            ChildFailedError: the job ended, or took too long.
        """
        self._add(self.process.read_line(SPARK_LIMIT_S)["batch"])

    def read_new_batches(self) -> None:
        """Add the batches that ended since the last call.

        Raises:
            ChildFailedError: the job ended.
        """
        for line in self.process.read_new_lines():
            self._add(line["batch"])

    def finish(self) -> dict[str, Any]:
        """Have the job read what is stored, and return its report.

        Raises:
            ChildFailedError: the job failed, or took too long.
        """
        self.process.end_input()
        while "report" not in (line := self.process.read_line(SPARK_LIMIT_S)):
            self._add(line["batch"])
        self.process.wait()
        report: dict[str, Any] = line["report"]
        return report

    def _add(self, batch: dict[str, Any]) -> None:
        self.rows += batch["rows"]
        if batch["rows"]:
            self.rows_per_second = batch["rows_per_second"]
            delays = {airport: batch[airport] for airport in AIRPORTS}
            self.window = Window(batch["first"], batch["last"], delays)


def _day(text: str) -> str:
    return f"{datetime.fromisoformat(text):%b %-d}"
