"""Measures pops of stored 1 KB messages: 8 connections, 32 a pop, every message acknowledged.

A run lasts three times the invisible time, so that it pays for the checkpoints that come due.
"""

from __future__ import annotations

from typing import Final

from bench.catch_up import FILL
from bench.end_to_end import FIGURES, latencies
from bench.question import Figure, Question, Values
from bench.turn import Turn

INVISIBLE_S: Final = 10
RUN_S: Final = 3 * INVISIBLE_S


def _measure(turn: Turn, flags: dict[str, object]) -> Values | None:
    if not turn.supports("pop"):
        return None
    topic = "bench-pull"
    turn.fill("async", topic, FILL)
    report = turn.load(
        "async", "pop", times=RUN_S / turn.seconds, topic=topic, conns=8, window=1, max=32,
        invisible=f"{INVISIBLE_S}s", **flags,
    )  # fmt: skip
    return {
        "rate": report["msgs_per_s"],
        "server CPU": report["server_cpu_s"] * 1e6 / max(1, report["msgs"]),
    }


def _question(name: str, acks: str, ratio: float, flags: dict[str, object]) -> Question:
    return Question(
        name=name,
        text=f"pop, 8 connections, 32 a pop, {acks}, asynchronous flush",
        figures=(
            Figure("rate", "messages/s", is_more_better=True, ratio=ratio),
            Figure("server CPU", "us/message", ratio=ratio),
        ),
        measure=lambda turn: _measure(turn, flags),
        is_long=True,
    )


def _measure_latency(turn: Turn) -> Values | None:
    return latencies(turn, "async", via="pop", topic="bench-pop-e2e")


QUESTIONS: Final = (
    _question("pop", "one batch ack", 1.5, {}),
    _question("pop-single-acks", "single acks", 2.5, {"singleack": "true"}),
    Question(
        name="pop-e2e",
        text="end to end at 1,000/s by held pop, asynchronous flush",
        figures=FIGURES,
        measure=_measure_latency,
    ),
)
