"""Results of a benchmark run: samples, a table of their medians and ratios, and a JSON file."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rich.table import Table

from bench import load_generator
from bench.machine import describe
from bench.peers import JAVA
from bench.question import Figure, Question, Values
from bench.turn import Peer, Turn

_TITLE: Final = (
    "Medians. Times above 1: better than Java. *: machine not idle. !: some sends refused."
)


@dataclass
class Sample:
    """The result of one turn.

    Attributes:
        is_alone: False if other programs used the machine, in the repeated measurements too.
    """

    question: str
    peer: str
    values: Values
    is_alone: bool
    turn: Turn = field(repr=False)


class Findings:
    """All samples of a run."""

    def __init__(self, questions: Sequence[Question], peers: Sequence[Peer]) -> None:
        self.questions = questions
        self.peers = peers
        self._samples: list[Sample] = []

    def add(self, sample: Sample) -> None:
        """Add a sample."""
        self._samples.append(sample)

    def of(self, question: Question, peer: str) -> list[Sample]:
        """Return the undisturbed samples, or the disturbed ones if there are no others."""
        samples = [s for s in self._samples if (s.question, s.peer) == (question.name, peer)]
        return [sample for sample in samples if sample.is_alone] or samples

    def median(self, question: Question, figure: Figure, peer: str) -> float | None:
        """Return the median of a peer's figure; None if it was not measured."""
        values = [sample.values[figure.name] for sample in self.of(question, peer)]
        return statistics.median(values) if values else None

    def table(self) -> Table:
        """Return a row for each figure: the median of each peer, and its ratio to Java's."""
        table = Table(title=_TITLE)
        table.add_column("measure")
        for peer in self.peers:
            table.add_column(peer.name, justify="right")
            if peer.is_ours:
                table.add_column("times", justify="right")
        table.add_column("goal", justify="right")
        table.add_column("held", justify="right")
        for question in self.questions:
            table.add_section()
            for figure in question.figures:
                table.add_row(*self._cells(question, figure))
        return table

    def _cells(self, question: Question, figure: Figure) -> list[str]:
        java = self.median(question, figure, JAVA)
        cells = [f"{question.text}: {figure.name}, {figure.unit}"]
        verdicts = []
        for peer in self.peers:
            value = self.median(question, figure, peer.name)
            mark = self._mark(question, peer.name)
            cells.append("-" if value is None else shown(value) + mark)
            if not peer.is_ours:
                continue
            is_comparable = value is not None and java is not None
            times = figure.times_better(value, java) if is_comparable else None  # type: ignore[arg-type]
            cells.append("-" if times is None else f"{times:.2f}")
            if value is not None:
                verdicts.append(figure.is_held(value, java))
        held = ["-" if verdict is None else ("yes" if verdict else "NO") for verdict in verdicts]
        cells += [figure.goal, " / ".join(held) if figure.goal else ""]
        return cells

    def _mark(self, question: Question, peer: str) -> str:
        samples = self.of(question, peer)
        is_alone = all(sample.is_alone for sample in samples)
        has_refused = any(
            load_generator.has_refused(r) for sample in samples for r in sample.turn.reports
        )
        return ("" if is_alone else "*") + ("!" if has_refused else "")

    def save(self, path: Path) -> None:
        """Write the machine, all figures, and all reports of the load generator as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        medians = {
            question.name: {
                figure.name: {p.name: self.median(question, figure, p.name) for p in self.peers}
                for figure in question.figures
            }
            for question in self.questions
        }
        samples = [
            {
                "question": sample.question,
                "peer": sample.peer,
                "values": sample.values,
                "is_alone": sample.is_alone,
                "reports": sample.turn.reports,
            }
            for sample in self._samples
        ]
        found = {
            "machine": describe(),
            "peers": {peer.name: peer.about for peer in self.peers},
            "medians": medians,
            "samples": samples,
        }
        path.write_text(json.dumps(found, indent=1))


def shown(value: float) -> str:
    """Return a number with three significant digits."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
