"""Runs simulations of replicas by hand.

python -m tests.sim.replicas --seeds 1000              all rules on: nothing may be lost
python -m tests.sim.replicas --rules --seeds 500       each rule off: the first seed that finds it
python -m tests.sim.replicas --seed 4711 --seeds 1     one seed, with its faults and all logs
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
import traceback
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

from tests.sim.replicas.host_network import name_of
from tests.sim.replicas.process_loop import current_process, outside
from tests.sim.replicas.rules import RULES
from tests.sim.replicas.simulation import Result, simulate


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def run_one(seed: int, rule: str | None = None) -> Result:
    """Run one seed; an exception is a failure."""
    logging.disable(logging.CRITICAL)
    return _run(seed, rule)


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


def _run(seed: int, rule: str | None) -> Result:
    try:
        return simulate(seed, None if rule is None else RULES[rule])
    except BaseException:  # noqa: BLE001 - also groups
        return Result([traceback.format_exc()], 0, [], is_stuck=False)


def _results(seeds: range, rule: str | None, jobs: int) -> Iterable[Result]:
    work = partial(run_one, rule=rule)
    if jobs <= 1:
        yield from map(work, seeds)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as processes:
        yield from processes.map(work, seeds, chunksize=4)


def _all_rules(seeds: range, jobs: int) -> int:
    failed = stuck = acknowledged = 0
    began_s = time.perf_counter()
    if len(seeds) == 1:
        logger = logging.getLogger("kourou")
        logger.addHandler(_ProcessHandler())
        logger.setLevel(logging.INFO)
        logger.propagate = False
        results: Iterable[Result] = [_run(seeds[0], None)]
    else:
        results = _results(seeds, None, jobs)
    for seed, result in zip(seeds, results, strict=True):
        acknowledged += result.acknowledged
        stuck += result.is_stuck
        if result.failures or result.is_stuck or len(seeds) == 1:
            failed += bool(result.failures)
            _say(f"seed {seed}: stuck {result.is_stuck}, failures {result.failures[:5]}")
            if len(seeds) == 1:
                _say("\n".join(result.faults))
        if (seed - seeds.start + 1) % 100 == 0:
            _say(f"{seed - seeds.start + 1}: {failed} failed, {stuck} stuck, {acknowledged:,}")
    took_s = time.perf_counter() - began_s
    _say(f"{len(seeds)} seeds in {took_s:.0f} s: {failed} failed, {stuck} stuck, "
         f"{acknowledged:,} acknowledged")  # fmt: skip
    return 1 if failed or stuck else 0


def _each_rule(seeds: range, jobs: int, names: list[str]) -> int:
    code = 0
    for name in names:
        found, tried, stuck = None, 0, 0
        for seed, result in zip(seeds, _results(seeds, name, jobs), strict=False):
            tried, stuck = tried + 1, stuck + result.is_stuck
            if result.failures:
                found = f"seed {seed}: {result.failures[0].splitlines()[-1]}"
                break
        is_right = (found is not None) == RULES[name].is_needed
        code |= not is_right
        _say(f"{'ok' if is_right else 'WRONG'}: without '{name}': {found or 'nothing'} "
             f"in {tried} seeds, {stuck} stuck")  # fmt: skip
    return code


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
    arguments = parser.parse_args()
    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    if arguments.rules or arguments.rule:
        names = [arguments.rule] if arguments.rule else list(RULES)
        return _each_rule(seeds, arguments.jobs, names)
    return _all_rules(seeds, arguments.jobs)


if __name__ == "__main__":
    sys.exit(main())
