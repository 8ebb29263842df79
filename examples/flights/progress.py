"""Progress bars: messages sent, flights counted, messages in the Parquet; and the live delays."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from ledger import Ledgers
from publish import Publication
from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text
from stream import Stream


class ProgressBars:
    """Shows the progress of publication, counting and the stream, and the delays of its last batch.

    Args:
        console: the terminal.
        total: number of flights.
    """

    def __init__(self, console: Console, total: int) -> None:
        self._total = total
        self._progress = _BarsWithText(
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
        )
        self._sent, self._counted, self._streamed = (
            self._progress.add_task(name, total=total, note="")
            for name in ("sent     ", "counted  ", "streamed ")
        )

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

    def show(self, publication: Publication, ledgers: Ledgers, stream: Stream) -> None:
        """Update the bars and the text."""
        speed = self._progress.tasks[self._sent].speed or 0
        self._progress.update(
            self._sent, completed=publication.acknowledged, note=f"{speed:,.0f} messages/s"
        )
        mean = ledgers.minutes / max(1, ledgers.late)
        self._progress.update(
            self._counted,
            completed=len(ledgers.flights),
            note=f"{ledgers.late:,} late, {mean:.0f} minutes each",
        )
        behind = max(0, publication.acknowledged - stream.rows)
        self._progress.update(
            self._streamed,
            completed=stream.rows,
            total=max(self._total, stream.rows),  # a message may be stored twice
            note=f"{stream.rows_per_second:,.0f} rows/s, {behind:,} behind",
        )
        if stream.window is not None:
            self._progress.text = Text(f"delays    {stream.window}")


class _BarsWithText(Progress):
    """Progress bars with a line of text below."""

    text = Text()

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return the bars and the text."""
        yield from super().get_renderables()
        yield self.text
