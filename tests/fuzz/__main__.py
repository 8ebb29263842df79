"""Runs the fuzzer; the exit code is 0 without findings, else 1.

python -m tests.fuzz --seconds 60             with a new seed, which is printed
python -m tests.fuzz --seconds 60 --seed 7    with the same cases as another run with seed 7
python -m tests.fuzz --seed 7 --case 1234     one case only, with its traceback
"""

from __future__ import annotations

import argparse
import logging
import resource
import secrets
import sys
import time
from typing import Final

from tests.fuzz.runner import Fuzzer, Report
from tests.fuzz.targets import all_targets

_ADDRESS_SPACE_BYTES: Final = 3 << 30
"""Address space of the process: a decoder that allocates a hostile size fails."""

_RESIDENT_BYTES_MAX: Final = 512 << 20
"""Limit of the peak resident memory: one answer may decompress to 256 MiB."""


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    parser.add_argument("--case", type=int, help="run this case only")
    arguments = parser.parse_args()
    logging.disable()  # settings log thousands of warnings about keys
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE_BYTES, _ADDRESS_SPACE_BYTES))
    targets = all_targets()
    fuzzer = Fuzzer(targets, arguments.seed)
    if arguments.case is not None:
        target, data = fuzzer.case(arguments.case)
        _say(f"{target.name}: {len(data)} bytes\n{data.hex()}")
        target.run(data)
        return 0
    _say(f"seed {arguments.seed}, {len(targets)} targets, {arguments.seconds:g} s")
    began = time.perf_counter()
    report = fuzzer.run(time.perf_counter, began + arguments.seconds)
    return _tell(report, arguments.seed, time.perf_counter() - began)


def _tell(report: Report, seed: int, seconds: float) -> int:
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    groups = ", ".join(f"{name} {count:,}" for name, count in sorted(report.by_group.items()))
    _say(f"{report.cases:,} cases in {seconds:.1f} s: {report.cases / seconds:,.0f}/s")
    _say(f"{report.refused:,} refused with an allowed error; peak {resident >> 20} MiB resident")
    _say(groups)
    for finding in report.findings:
        _say(
            f"\n{finding.target}: {finding.reason}\n  {finding.place}\n"
            f"  {finding.data[:200].hex()} ({len(finding.data)} bytes)\n"
            f"  again: python -m tests.fuzz --seed {seed} --case {finding.case}"
        )
    if resident > _RESIDENT_BYTES_MAX:
        _say(f"\nmemory: {resident >> 20} MiB exceed the limit of {_RESIDENT_BYTES_MAX >> 20} MiB")
        return 1
    return 1 if report.findings else 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
