"""Runs simulations of replicas by hand.

python -m tests.sim.replicas --seeds 1000              all rules on: nothing may be lost, and one
                                                       master serves at a time
python -m tests.sim.replicas --rules --seeds 1000      each rule off: the first seed that finds it
python -m tests.sim.replicas --off lease --seeds 500   a rule off: nothing may be lost
python -m tests.sim.replicas --seed 4711 --seeds 1     one seed, with its faults and all logs
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Final

from tests.sim.replicas.drills import DRILLS
from tests.sim.replicas.host_network import name_of
from tests.sim.replicas.process_loop import current_process, outside
from tests.sim.replicas.rules import RULES
from tests.sim.replicas.simulation import Result, drawn_drill, simulate

_COVERED_SEEDS: Final = 20
"""Seeds of a drill that show that a rule is covered by others."""


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def run_one(seed: int, rules: tuple[str, ...] = (), drill: str = "") -> Result:
    """Run one seed; an exception is a failure."""
    logging.disable(logging.CRITICAL)
    return _run(seed, rules, drill)


class _ProcessHandler(logging.Handler):
    """Prints log entries with virtual time and process."""

    def emit(self, record: logging.LogRecord) -> None:
        name = name_of(current_process())
        try:
            now_s = outside(lambda: asyncio.get_running_loop().time())
        except RuntimeError:
            return  # a task that is dropped in the end
        error = f" {record.exc_info[1]!r}" if record.exc_info else ""
        _say(f"{now_s:8.3f} {name:13} {record.getMessage()}{error}")


def _run(seed: int, rules: tuple[str, ...], drill: str) -> Result:
    try:
        return simulate(seed, *(RULES[name] for name in rules), drill=drill)
    except BaseException:  # noqa: BLE001 - also groups
        return Result([traceback.format_exc()], 0, [], is_stuck=False, overlaps=[])


def _results(
    seeds: Sequence[int], rules: tuple[str, ...], drill: str, jobs: int
) -> Iterable[Result]:
    work = partial(run_one, rules=rules, drill=drill)
    if jobs <= 1:
        yield from map(work, seeds)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as processes:
        yield from processes.map(work, seeds, chunksize=4)


def _all_rules(seeds: range, jobs: int, rules: tuple[str, ...], drill: str) -> int:
    """Run seeds that must lose nothing; `rules`: are off nevertheless."""
    failed = stuck = acknowledged = 0
    began_s = time.perf_counter()
    if len(seeds) == 1:
        logger = logging.getLogger("kourou")
        logger.addHandler(_ProcessHandler())
        logger.setLevel(logging.INFO)
        logger.propagate = False
        results: Iterable[Result] = [_run(seeds[0], rules, drill)]
    else:
        results = _results(seeds, rules, drill, jobs)
    for seed, result in zip(seeds, results, strict=True):
        acknowledged += result.acknowledged
        stuck += result.is_stuck
        failures = result.failures if rules else [*result.failures, *result.overlaps]
        if failures or result.is_stuck or len(seeds) == 1:
            failed += bool(failures)
            _say(f"seed {seed}: stuck {result.is_stuck}, failures {failures[:5]}")
            if len(seeds) == 1:
                _say("\n".join(result.faults))
        if (seed - seeds.start + 1) % 100 == 0:
            _say(f"{seed - seeds.start + 1}: {failed} failed, {stuck} stuck, {acknowledged:,}")
    took_s = time.perf_counter() - began_s
    _say(f"{len(seeds)} seeds in {took_s:.0f} s: {failed} failed, {stuck} stuck, "
         f"{acknowledged:,} acknowledged")  # fmt: skip
    return 1 if failed or stuck else 0


def _each_rule(seeds: range, jobs: int, names: list[str]) -> int:
    """Search a seed that finds the lack of each rule, among those that draw its drill."""
    code = 0
    for name in names:
        rule = RULES[name]
        some = [seed for seed in seeds if rule.drill in ("", drawn_drill(seed))]
        is_needed = rule.covered_by is None
        tried = some if is_needed else some[:_COVERED_SEEDS]
        code |= _first_found(tried, (name,), jobs, is_expected=is_needed)
        if rule.covered_by:
            code |= _first_found(some, (name, *rule.covered_by), jobs, is_expected=True)
    return code


def _first_found(
    seeds: Sequence[int], rules: tuple[str, ...], jobs: int, *, is_expected: bool
) -> int:
    """Run seeds without rules until one fails; return 1 if that contradicts what is expected."""
    found, tried, stuck = None, 0, 0
    for seed, result in zip(seeds, _results(seeds, rules, "", jobs), strict=False):
        tried, stuck = tried + 1, stuck + result.is_stuck
        failures = [*result.failures, *result.overlaps]
        if result.is_stuck and any(RULES[name].is_stuck for name in rules):
            failures.append("the replicas did not come in sync again")
        if failures:
            found = f"seed {seed}: {failures[0].splitlines()[-1]}"
            break
    is_right = (found is not None) == is_expected
    _say(f"{'ok' if is_right else 'WRONG'}: without {' and '.join(map(repr, rules))}: "
         f"{found or 'nothing'} in {tried} seeds, {stuck} stuck")  # fmt: skip
    return not is_right


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.sim.replicas",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--rules", action="store_true")
    parser.add_argument("--rule", choices=list(RULES))
    parser.add_argument("--off", choices=list(RULES), action="append", default=[])
    parser.add_argument("--drill", choices=list(DRILLS), default="")
    arguments = parser.parse_args()
    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    if arguments.rules or arguments.rule:
        names = [arguments.rule] if arguments.rule else list(RULES)
        return _each_rule(seeds, arguments.jobs, names)
    return _all_rules(seeds, arguments.jobs, tuple(arguments.off), arguments.drill)


if __name__ == "__main__":
    sys.exit(main())
