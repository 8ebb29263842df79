"""Generates cases, runs them, and reports findings.

Case number n of a seed is always the same, whatever ran before it, so that a finding can be
repeated with its seed and number.
"""

from __future__ import annotations

import contextlib
import math
import random
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.fuzz.mutate import mutate
from tests.fuzz.targets import Target

CASE_SECONDS_MAX: Final = 1.0
"""Limit of processor time for a case of at most 64 KiB: it would block a server's event loop."""

FINDINGS_MAX: Final = 10
"""Findings after which a run ends; failures in the same place count once."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A case in which a target failed or was too slow."""

    target: str
    case: int
    data: bytes
    reason: str
    place: str
    """File, line and function that raised the error; empty for a slow case."""


def _seconds(target: Target, data: bytes) -> float:
    """Return the processor time of a case, ignoring its errors."""
    began = time.thread_time()
    with contextlib.suppress(Exception):
        target.run(data)
    return time.thread_time() - began


@dataclass(slots=True)
class Report:
    """Result of a run.

    Attributes:
        cases: number of cases.
        refused: number of cases that raised one of the target's allowed errors.
        by_group: number of cases by group of targets.
    """

    cases: int = 0
    refused: int = 0
    by_group: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


class Fuzzer:
    """Runs cases against targets; a group of n targets gets sqrt(n) shares of the cases, at most 4.

    This gives enough cases both to single decoders and to each of a hundred header classes.
    """

    def __init__(self, targets: Sequence[Target], seed: int) -> None:
        self._seed = seed
        groups: dict[str, list[Target]] = {}
        for target in targets:
            groups.setdefault(target.name.partition(".")[0], []).append(target)
        self._groups = [targets for _, targets in sorted(groups.items())]
        self._shares = [min(math.sqrt(len(targets)), 4) for targets in self._groups]
        self.report = Report()
        self._seen: set[tuple[str, str]] = set()

    def case(self, number: int) -> tuple[Target, bytes]:
        """Return the target and the bytes of a case."""
        source = random.Random(self._seed << 64 | number)
        (group,) = source.choices(self._groups, self._shares)
        target = source.choice(group)
        return target, mutate(source, target.seeds)

    def run(self, clock: Callable[[], float], until: float) -> Report:
        """Run cases 0, 1, 2, ... until `clock()` reaches `until` or the limit of findings."""
        number = 0
        while clock() < until and len(self.report.findings) < FINDINGS_MAX:
            self.run_case(number)
            number += 1
        return self.report

    def run_case(self, number: int) -> None:
        """Run one case and add it to the report."""
        target, data = self.case(number)
        report = self.report
        report.cases += 1
        group = target.name.partition(".")[0]
        report.by_group[group] = report.by_group.get(group, 0) + 1
        began = time.thread_time()
        try:
            target.run(data)
        except target.errors:
            report.refused += 1
        except Exception as error:  # noqa: BLE001 - any other error is a finding
            self._note(target, number, data, error)
        took = time.thread_time() - began
        if took > CASE_SECONDS_MAX:
            took = min(took, _seconds(target, data))  # garbage collection may slow the first run
        if took > CASE_SECONDS_MAX:
            self._note(target, number, data, TimeoutError(f"took {took:.2f} s"))

    def _note(self, target: Target, number: int, data: bytes, error: Exception) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{frames[-1].filename}:{frames[-1].lineno} {frames[-1].name}" if frames else ""
        if (target.name, place) in self._seen:
            return
        self._seen.add((target.name, place))
        reason = f"{type(error).__name__}: {error}"
        self.report.findings.append(Finding(target.name, number, data, reason[:500], place))
