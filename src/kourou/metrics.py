"""What is counted, as whoever exposes it reads it: families of labelled numbers. Pure values.

Counting itself happens where it is cheap (plain integers beside what they count); a *reading*
makes families of them, which cross threads as they are frozen. Their text is the console's.

The names are those that Java's Prometheus exporter prints, unit and `_total` included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What a family's numbers mean."""

    COUNTER = "counter"
    """They only grow, from 0 at the start of the process."""
    GAUGE = "gauge"
    """They are as things are at this moment."""
    HISTOGRAM = "histogram"
    """They count observations by size; the samples are `Distribution`s."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One number, and what it is about: label name -> value."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Distribution:
    """How observations are distributed.

    Attributes:
        bounds: ascending; `counts[i]` observations are at most `bounds[i]` and above the bound
            before; the last of `counts`, one more than there are bounds, are above all.
        total: the sum of all observed values.
    """

    labels: Mapping[str, str]
    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        """How many observations there are."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class Family:
    """All that is counted under one name.

    Attributes:
        name: as Java's exporter prints it.
        text: one sentence for whoever reads the exposition.
        samples: for a histogram `Distribution`s, else `Sample`s; each with labels of its own.
    """

    name: str
    kind: Kind
    text: str
    samples: Sequence[Sample | Distribution]
