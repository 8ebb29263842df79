"""Two progress bars: messages sent and flights counted."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from ledger import Ledgers
from publish import Publication
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class ProgressBars:
    """Shows the progress of publication and counting."""

    def __init__(self, console: Console, total: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
        )
        self._sent = self._progress.add_task("sent     ", total=total, note="")
        self._counted = self._progress.add_task("counted  ", total=total, note="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def show(self, publication: Publication, ledgers: Ledgers) -> None:
        """Update the bars."""
        speed = self._progress.tasks[self._sent].speed
        self._progress.update(
            self._sent,
            completed=publication.acknowledged,
            note="" if speed is None else f"{speed:,.0f} messages/s",
        )
        mean = ledgers.minutes / max(1, ledgers.late)
        self._progress.update(
            self._counted,
            completed=len(ledgers.flights),
            note=f"{ledgers.late:,} late, {mean:.0f} minutes each",
        )
