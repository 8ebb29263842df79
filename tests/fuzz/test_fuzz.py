"""The fuzzer is deterministic, detects errors, and has no findings in a short run."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable

import pytest

from kourou.errors import MalformedBodyError
from tests.fuzz import runner
from tests.fuzz.mutate import CASE_BYTES_MAX, mutate
from tests.fuzz.runner import FINDINGS_MAX, Fuzzer, Report
from tests.fuzz.targets import Target, all_targets

SEEDS = (b"", b'{"a":1}', bytes(range(256)))
CASES = 1500


def report_of(run: Callable[[bytes], object], cases: int = 20) -> Report:
    """Return the report of a run with a single target."""
    fuzzer = Fuzzer([Target("only", run, SEEDS)], seed=7)
    ticks = itertools.count()
    return fuzzer.run(lambda: next(ticks), cases)


def test_a_short_run_has_no_findings() -> None:
    fuzzer = Fuzzer(all_targets(), seed=20261121)
    for number in range(CASES):
        fuzzer.run_case(number)
    report = fuzzer.report

    assert report.findings == []
    assert report.cases == CASES
    # If almost all cases were refused, or almost none, the run would test little.
    assert 0.3 * CASES < report.refused < 0.95 * CASES


def test_each_target_accepts_at_least_one_of_its_seeds() -> None:
    for target in all_targets():
        taken = 0
        for seed in target.seeds:
            try:
                target.run(seed)
            except target.errors:
                continue
            taken += 1
        assert taken or target.name.startswith(("body.", "fields.")), target.name


def test_targets_have_unique_names_and_seeds() -> None:
    targets = all_targets()

    assert len({target.name for target in targets}) == len(targets)
    assert all(target.seeds for target in targets)
    assert {"frame", "batch", "compressed", "properties"} < {target.name for target in targets}


def test_a_case_depends_on_its_seed_and_number_only() -> None:
    targets = [Target("one", len, SEEDS), Target("two", len, SEEDS)]
    cases = [Fuzzer(targets, seed=7).case(number) for number in range(50)]

    assert [Fuzzer(targets, seed=7).case(number) for number in reversed(range(50))] == cases[::-1]
    assert [Fuzzer(targets, seed=8).case(number) for number in range(50)] != cases


def test_the_size_of_cases_is_limited() -> None:
    seeds = (bytes(CASE_BYTES_MAX), b"[" * 60_000)

    assert all(len(mutate(random.Random(seed), seeds)) <= CASE_BYTES_MAX for seed in range(100))


def test_allowed_errors_are_counted() -> None:
    def refuse(_: bytes) -> None:
        raise MalformedBodyError("no")

    report = report_of(refuse)
    assert (report.cases, report.refused, report.findings) == (20, 20, [])
    assert report.by_group == {"only": 20}


def test_any_other_error_is_one_finding_per_place() -> None:
    def fail(data: bytes) -> None:
        raise KeyError(data)

    (finding,) = report_of(fail).findings
    assert finding.target == "only"
    assert finding.reason.startswith("KeyError")
    assert finding.place.endswith(" fail")
    assert Fuzzer([Target("only", fail, SEEDS)], seed=7).case(finding.case)[1] == finding.data


def test_a_run_ends_at_the_limit_of_findings() -> None:
    def fail(_: bytes) -> None:
        raise KeyError

    targets = [Target(f"target.{number}", fail, SEEDS) for number in range(2 * FINDINGS_MAX)]
    ticks = itertools.count()

    assert len(Fuzzer(targets, seed=7).run(lambda: next(ticks), 1000).findings) == FINDINGS_MAX


def test_a_slow_case_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "CASE_SECONDS_MAX", 0.001)

    def spin(_: bytes) -> None:
        end = time.thread_time() + 0.002
        while time.thread_time() < end:
            pass

    (finding,) = report_of(spin, cases=2).findings
    assert finding.reason.startswith("TimeoutError: took 0.")
