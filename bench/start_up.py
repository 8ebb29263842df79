"""Measures the start of a new broker up to its first send, its idle memory, and its stop.

Name server and broker run on an empty store with synchronous flush. A send is tried every 10 ms,
beginning before the start of the processes.
"""

from __future__ import annotations

import time
from typing import Final

from bench.question import Figure, Question, Values
from bench.turn import Turn

_PAUSE_SECONDS: Final = 2.0


def _measure(turn: Turn) -> Values | None:
    if not turn.supports("wait"):
        return None
    with turn.fresh("sync") as server:
        time.sleep(_PAUSE_SECONDS)
        memory_mb = server.anonymous_mb()
        return {"to first send": server.ready_s, "memory": memory_mb, "clean stop": server.stop()}


QUESTIONS: Final = (
    Question(
        name="start-up",
        text="name server and broker",
        figures=(
            Figure("to first send", "s", limit=1.0),
            Figure("memory", "MiB", limit=60),
            Figure("clean stop", "s", limit=2),
        ),
        measure=_measure,
        is_once=True,
    ),
)
