"""Tests of garbage collection in a server: short collections that still find garbage."""

from __future__ import annotations

import json
import subprocess
import sys

_PROGRAM = """
import gc, json
from kourou.cli.process import limit_gc_pauses

limit_gc_pauses()

def counts():
    return [(one["collections"], one["collected"]) for one in gc.get_stats()]

before = counts()
stays = [[] for _ in range(100_000)]
between = counts()
for _ in range(20_000):
    cycle = []
    cycle.append(cycle)
print(json.dumps([before, between, counts()]))
"""


def test_long_lived_objects_are_examined_only_while_young() -> None:
    # In a separate interpreter, because collections depend on all objects of the process.
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], check=True, capture_output=True, timeout=30
    )
    before, between, after = json.loads(done.stdout)
    young, old = 1, 2
    assert between[old] == before[old]
    assert between[young][0] > before[young][0]
    found = sum(count for _, count in after) - sum(count for _, count in between)
    assert found > 10_000
