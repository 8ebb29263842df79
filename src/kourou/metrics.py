"""Metric families: the values of all counters, gauges and histograms at one moment.

Code that counts uses plain integers, which is cheap. A *reading* copies them into families, which
are frozen and can be passed between threads. The console formats families as text.

Metric names are those of Java's Prometheus exporter, with the unit and `_total`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """Type of a metric family."""

    COUNTER = "counter"
    """Values only grow, from 0 at the start of the process."""
    GAUGE = "gauge"
    """Values are the state at the moment of the reading."""
    HISTOGRAM = "histogram"
    """Values count observations by size; the samples are `Distribution`s."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One number with its labels (label name -> value)."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Distribution:
    """Distribution of observations: one sample of a histogram.

    Attributes:
        bounds: ascending upper bounds.
        counts: `counts[i]` observations are at most `bounds[i]` and above `bounds[i - 1]`. There is
            one count more than there are bounds: the last counts observations above all bounds.
        total: the sum of all observed values.
    """

    labels: Mapping[str, str]
    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        """The number of observations."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class Family:
    """All samples of one metric name.

    Attributes:
        name: as Java's exporter prints it.
        text: the help text, one sentence.
        samples: `Distribution`s for a histogram, otherwise `Sample`s; their labels differ.
    """

    name: str
    kind: Kind
    text: str
    samples: Sequence[Sample | Distribution]
