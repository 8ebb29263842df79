"""What a benchmark asks, which figures answer it, and to what Kourou is held."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.turn import Turn

Values = Mapping[str, float]


@dataclass(frozen=True)
class Figure:
    """One number that a question yields.

    Attributes:
        name: what it counts; with the question's text a row of the table.
        is_more_better: whether a larger number is the better one.
        ratio: how many times better than Java Kourou has to be.
        limit: the value that Kourou has to reach, whatever Java does.
    """

    name: str
    unit: str
    is_more_better: bool = False
    ratio: float | None = None
    limit: float | None = None

    def times_better(self, ours: float, theirs: float) -> float:
        """Return how many times better `ours` is than `theirs`; above 1 we do better."""
        better, worse = (ours, theirs) if self.is_more_better else (theirs, ours)
        return better / worse if worse else float("inf")

    def is_held(self, ours: float, java: float | None) -> bool | None:
        """Tell whether the goals are met; None where there is none, or nothing to compare with."""
        verdicts = []
        if self.limit is not None:
            verdicts.append(ours >= self.limit if self.is_more_better else ours <= self.limit)
        if self.ratio is not None and java is not None:
            verdicts.append(self.times_better(ours, java) >= self.ratio)
        return all(verdicts) if verdicts else None

    @property
    def goal(self) -> str:
        """The goals as text; empty without one."""
        sign = ">=" if self.is_more_better else "<="
        texts = []
        if self.ratio is not None:
            texts.append(f">= {self.ratio:g} x")
        if self.limit is not None:
            texts.append(f"{sign} {self.limit:,g} {self.unit}")
        return ", ".join(texts)


@dataclass(frozen=True)
class Question:
    """One thing to find out about each peer.

    Attributes:
        name: for `--questions`.
        text: for the table.
        measure: returns the figures by name; None where this peer cannot be asked.
        is_long: whether it takes minutes, and is asked only by name or with `--long`.
        is_once: whether a peer that takes long to start is asked in the first round only.
    """

    name: str
    text: str
    figures: tuple[Figure, ...]
    measure: Callable[[Turn], Values | None]
    is_long: bool = False
    is_once: bool = False
