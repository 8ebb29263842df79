"""Measures the growth of a server's memory after 10 GB of sends.

The figure is anonymous memory (RssAnon) of all its processes, without file pages of the log. It is
compared with the memory after the first messages and a pause, as in `bench/start_up.py`.
"""

from __future__ import annotations

import time
from typing import Final

from bench.question import Figure, Question, Values
from bench.turn import Turn

SENT_BYTES: Final = 10 * 10**9
_BODY_BYTES: Final = 1024
_LIMIT: Final = "1h"
_PAUSE_SECONDS: Final = 2.0


def _measure(turn: Turn) -> Values | None:
    if not turn.supports("pull"):
        return None
    with turn.fresh("async") as server:
        time.sleep(_PAUSE_SECONDS)
        before_mb = server.anonymous_mb()
        count = SENT_BYTES // _BODY_BYTES
        server.load("send", topic="bench", conns=64, window=4, count=count, dur=_LIMIT)
        return {"more memory": server.anonymous_mb() - before_mb}


QUESTIONS: Final = (
    Question(
        name="memory-10gb",
        text="after 10 GB sent, async flush",
        figures=(Figure("more memory", "MiB", limit=16),),
        measure=_measure,
        is_long=True,
        is_once=True,
    ),
)
