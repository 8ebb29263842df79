"""Measures the latency from a send to a long-polling consumer, at 1,000 messages per second."""

from __future__ import annotations

from typing import Final

from bench.question import Figure, Question, Values
from bench.servers import Flush
from bench.turn import Turn

RATE: Final = 1_000
_TIMES: Final = 2
"""Factor of the measured time against other questions, because of the low message rate."""
_FIGURES: Final = (
    Figure("p50", "ms", limit=0.7),
    Figure("p99", "ms", limit=3),
    Figure("p99.9", "ms"),
)


def _measure(turn: Turn, flush: Flush) -> Values | None:
    if not turn.supports("e2e"):
        return None
    report = turn.load(flush, "e2e", times=_TIMES, topic="bench-e2e", rate=RATE, size=1024)
    latency = report["lat_us"]
    return {
        "p50": latency["p50"] / 1000,
        "p99": latency["p99"] / 1000,
        "p99.9": latency["p999"] / 1000,
    }


def _question(flush: Flush) -> Question:
    return Question(
        name=f"e2e-{flush}",
        text=f"end to end at {RATE:,}/s by long poll, {flush} flush",
        figures=_FIGURES,
        measure=lambda turn: _measure(turn, flush),
    )


QUESTIONS: Final = (_question("async"), _question("sync"))
