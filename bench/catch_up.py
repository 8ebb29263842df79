"""Measures pulls of stored 1 KB messages: 8 connections, 32 messages per pull."""

from __future__ import annotations

from typing import Final

from bench.question import Figure, Question, Values
from bench.turn import Turn

FILL: Final = 100_000
"""Number of messages, in 8 queues; each connection reads one queue again and again."""


def _measure(turn: Turn) -> Values | None:
    if not turn.supports("pull"):
        return None
    topic = "bench-pull"
    turn.fill("sync", topic, FILL)
    report = turn.load("sync", "pull", topic=topic, conns=8, window=1, max=32)
    return {
        "rate": report["msgs_per_s"],
        "server CPU": report["server_cpu_s"] * 1e6 / max(1, report["msgs"]),
    }


QUESTIONS: Final = (
    Question(
        name="pull",
        text="catch-up pull, 8 connections, 32 a pull",
        figures=(
            Figure("rate", "messages/s", is_more_better=True, ratio=2),
            Figure("server CPU", "us/message"),
        ),
        measure=_measure,
    ),
)
