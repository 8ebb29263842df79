"""Measures the latency from a send to a long-polling consumer, at 1,000 messages per second."""

from __future__ import annotations

from typing import Final

from bench.question import Figure, Question, Values
from bench.servers import Flush
from bench.turn import Turn

RATE: Final = 1_000
_TIMES: Final = 2
"""Factor of the measured time against other questions, because of the low message rate."""
FIGURES: Final = (
    Figure("p50", "ms", limit=0.7),
    Figure("p99", "ms", limit=3),
    Figure("p99.9", "ms"),
)


def latencies(turn: Turn, flush: Flush, *, via: str, topic: str) -> Values | None:
    """Return the latencies by `pull` or `pop`; None if the peer does not support them."""
    if not turn.supports("e2e"):
        return None
    report = turn.load(flush, "e2e", times=_TIMES, topic=topic, rate=RATE, size=1024, via=via)
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
        figures=FIGURES,
        measure=lambda turn: latencies(turn, flush, via="pull", topic="bench-e2e"),
    )


QUESTIONS: Final = (_question("async"), _question("sync"))
