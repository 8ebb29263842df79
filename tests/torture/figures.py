"""What a fault came to, beside what it may come to: one row of the table that torture prints."""

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
        fault: what was done.
        name: what was counted or measured.
        value: what came out, with its unit.
        limit: what may come out.
        held: whether it did.
        failures: how to see again what did not hold: a seed, and what was seen.
    """

    fault: str
    name: str
    value: str
    limit: str
    held: bool
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is done of each fault; the defaults are those that must hold.

    Attributes:
        seed: of the first; the others follow it.
        cycles: kills with -9.
        seeds: power losses, in sync mode and as many in async mode.
        places: bits flipped.
        calls: errors are put into the first, the second, ... call, up to this one.
        stride: every how many of these calls is hit by the shim, whose broker is a real process.
        seconds: chaos, half of it in sync mode and half in async mode.
        jobs: processes that simulations are spread over.
        say: told what goes on.
    """

    seed: int = 1
    cycles: int = 200
    seeds: int = 10_000
    places: int = 1_000
    calls: int = 200
    stride: int = 1
    seconds: int = 1_500
    jobs: int = field(default_factory=lambda: os.cpu_count() or 1)
    say: Callable[[str], None] = lambda _: None


@dataclass
class Outcome:
    """What one case of a simulated fault came to.

    Attributes:
        counts: what happened how often, by name.
        failures: what should not have happened, by the name of the figure that it spoils.
    """

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[str, str]] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        """Take the other's counts and failures along."""
        self.counts.update(other.counts)
        self.failures += other.failures

    def of(self, name: str) -> tuple[str, ...]:
        """Return the failures of one figure."""
        return tuple(text for figure, text in self.failures if figure == name)


Case = Callable[[int], Outcome]


def run_cases(case: Case, seeds: Sequence[int], size: Size, what: str) -> Outcome:
    """Return what all cases came to together; `case` must be a function of a module."""
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
    """Several cases in one go of another process."""

    case: Case

    def __call__(self, seeds: Iterable[int]) -> Outcome:
        total = Outcome()
        for seed in seeds:
            total.add(self.case(seed))
        return total


def counted(fault: str, name: str, outcome: Outcome, of: str) -> Figure:
    """Return the row of a figure that must be 0: how often it happened among the cases `of`."""
    failures = outcome.of(name)
    return Figure(
        fault, name, f"{len(failures)} in {outcome.counts[of]:,} {of}", "0", not failures, failures
    )
