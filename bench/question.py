"""Questions of the benchmarks, their figures, and the goals for Kourou."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.turn import Turn

Values = Mapping[str, float]


@dataclass(frozen=True)
class Figure:
    """One number that a question measures.

    Attributes:
        name: name of the figure, shown in the table with the question's text.
        is_more_better: whether a larger number is better.
        ratio: goal: how many times better than Java Kourou must be.
        limit: goal: the value that Kourou must reach, independent of Java.
    """

    name: str
    unit: str
    is_more_better: bool = False
    ratio: float | None = None
    limit: float | None = None

    def times_better(self, ours: float, theirs: float) -> float:
        """Return how many times better `ours` is than `theirs`; above 1, `ours` is better."""
        better, worse = (ours, theirs) if self.is_more_better else (theirs, ours)
        return better / worse if worse else float("inf")

    def is_held(self, ours: float, java: float | None) -> bool | None:
        """Return whether the goals are met; None without a goal, or without a value of Java."""
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
    """One measurement of each peer.

    Attributes:
        name: name for `--questions`.
        text: text for the table.
        measure: returns the figures by name; None if the peer does not support the question.
        is_long: whether it takes minutes, and runs only if `--questions` is given, or `--long`.
        is_once: whether a peer with a slow start is measured in the first round only.
    """

    name: str
    text: str
    figures: tuple[Figure, ...]
    measure: Callable[[Turn], Values | None]
    is_long: bool = False
    is_once: bool = False
