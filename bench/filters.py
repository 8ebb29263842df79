"""Measures evaluations of SQL92 expressions per second, with and without property decoding.

    python -m bench.filters [--seconds 1]

Expressions are evaluated over the decoded properties of a typical message, and then over their
stored text, as the broker does for a pull. Times are CPU times of this process.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Final

from kourou.filter.sql92 import SqlFilter
from kourou.model.properties import decode_properties, encode_properties

EXPRESSIONS: Final = (
    "a > 5",
    "region = 'eu'",
    "a BETWEEN 2 AND 8 AND region = 'eu'",
    "a > 5 AND region IN ('eu', 'us') AND price < 99.5",
    "(a = 1 OR a = 7) AND NOT (region STARTSWITH 'u') AND kind IS NOT NULL OR TAGS = 'x'",
)
PROPERTIES: Final = {
    "UNIQ_KEY": "7F000001000018B4AAC2000000000000",
    "CLUSTER": "DefaultCluster",
    "MSG_REGION": "DefaultRegion",
    "TRACE_ON": "true",
    "WAIT": "true",
    "TAGS": "placed",
    "a": "7",
    "region": "eu",
    "price": "12.5",
    "kind": "order",
}
GOAL: Final = 200_000
"""Evaluations per second."""

_ROUND: Final = 2_000


def rate(call: Callable[[], object], seconds: float) -> float:
    """Return calls per second of CPU time: the best of the rounds that fit into `seconds`."""
    ends_at = time.process_time() + seconds
    best = 0.0
    while (began := time.process_time()) < ends_at:
        for _ in range(_ROUND):
            call()
        best = max(best, _ROUND / (time.process_time() - began))
    return best


def main() -> None:
    """Print a line for each expression."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0)
    seconds = parser.parse_args().seconds
    text = encode_properties(PROPERTIES)
    print(f"{'evaluations/s':>15} {'with decoding':>15} {'compile us':>11}  expression")
    slowest = float("inf")
    for expression in EXPRESSIONS:
        compiled = SqlFilter(expression)
        evaluated = rate(lambda one=compiled: one.matches(PROPERTIES), seconds)  # type: ignore[misc]
        decoded = rate(lambda one=compiled: one.matches(decode_properties(text)), seconds)  # type: ignore[misc]
        made = rate(lambda text=expression: SqlFilter(text), seconds)  # type: ignore[misc]
        slowest = min(slowest, evaluated)
        print(f"{evaluated:15,.0f} {decoded:15,.0f} {1e6 / made:11.1f}  {expression}")
    print(f"slowest: {slowest:,.0f}/s; goal {GOAL:,}/s: {'held' if slowest >= GOAL else 'missed'}")


if __name__ == "__main__":
    main()
