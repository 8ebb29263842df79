"""Results of fault tests with their limits: the rows of the printed table."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Final

FAILURES_SHOWN: Final = 12
_CHUNK: Final = 25
_WORTH_TELLING: Final = 500


@dataclass(frozen=True)
class Figure:
    """One row.

    Attributes:
        fault: the kind of fault.
        name: the counted or measured quantity.
        value: its value, with unit.
        limit: its limit.
        held: whether the value is within the limit.
        failures: for each failure, the seed and a description.
    """

    fault: str
    name: str
    value: str
    limit: str
    held: bool
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Size:
    """Size of the fault tests; the defaults are the full size.

    Attributes:
        seed: the first seed; further ones follow it.
        cycles: number of kills with -9.
        seeds: number of power losses in sync mode, and the same number in async mode.
        places: number of flipped bits.
        calls: errors are injected into the first, second, ... call, up to this one.
        stride: with the shim, whose broker is a real process, only every n-th of these calls.
        seconds: duration of chaos, half of it in sync mode and half in async mode.
        messages: number of messages sent while the mode of their group changes.
        rounds: number of faults of replicas.
        longest: longest fault of replicas, in seconds.
        java: whether a Java client sends to the replicas, too.
        keep: directory for the stores of failed runs of chaos, and of replicas; empty: none.
        jobs: number of processes for simulations.
        say: called with progress messages.
    """

    seed: int = 1
    cycles: int = 200
    seeds: int = 10_000
    places: int = 1_000
    calls: int = 200
    stride: int = 1
    seconds: int = 1_500
    messages: int = 10_000
    rounds: int = 200
    longest: float = 60.0
    java: bool = False
    keep: str = ""
    jobs: int = field(default_factory=lambda: os.cpu_count() or 1)
    say: Callable[[str], None] = lambda _: None


@dataclass
class Outcome:
    """Result of one case of a simulated fault.

    Attributes:
        counts: numbers of events by name.
        failures: (name of the figure, description) of each failure.
    """

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[str, str]] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        """Add the other's counts and failures."""
        self.counts.update(other.counts)
        self.failures += other.failures

    def of(self, name: str) -> tuple[str, ...]:
        """Return the failures of one figure."""
        return tuple(text for figure, text in self.failures if figure == name)


Case = Callable[[int], Outcome]


def run_cases(case: Case, seeds: Sequence[int], size: Size, what: str) -> Outcome:
    """Return the combined outcome of all cases; `case` must be a function of a module."""
    total = Outcome()
    done = 0
    for some, outcome in _outcomes(case, seeds, size.jobs):
        total.add(outcome)
        before, done = done, done + some
        if len(seeds) >= _WORTH_TELLING and before * 10 // len(seeds) != done * 10 // len(seeds):
            size.say(f"{what}: {done:,} of {len(seeds):,}, {len(total.failures)} failures")
    return total


def _outcomes(case: Case, seeds: Sequence[int], jobs: int) -> Iterator[tuple[int, Outcome]]:
    if jobs <= 1 or len(seeds) < 2 * _CHUNK:
        for seed in seeds:
            yield 1, case(seed)
        return
    chunks = [seeds[at : at + _CHUNK] for at in range(0, len(seeds), _CHUNK)]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as processes:
        for outcome, chunk in zip(processes.map(_Several(case), chunks), chunks, strict=True):
            yield len(chunk), outcome


@dataclass(frozen=True)
class _Several:
    """Runs several cases in one call of another process."""

    case: Case

    def __call__(self, seeds: Iterable[int]) -> Outcome:
        total = Outcome()
        for seed in seeds:
            total.add(self.case(seed))
        return total


def counted(fault: str, name: str, outcome: Outcome, of: str) -> Figure:
    """Return the row of a figure that must be 0: its failures, among the cases named `of`."""
    failures = outcome.of(name)
    return Figure(
        fault, name, f"{len(failures)} in {outcome.counts[of]:,} {of}", "0", not failures, failures
    )
