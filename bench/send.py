"""Measures rate, latency and broker CPU of sends with 1 KB messages.

Three shapes: 64 blocking producers, 8 pipelining producers, and one blocking producer; and batches
of 32 messages. Each is measured with both flush modes: acknowledged in memory, and acknowledged on
disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bench.question import Figure, Question, Values
from bench.servers import Flush
from bench.turn import Turn

_TEXTS: Final = {
    "64x1": "send, 64 connections with 1 in flight",
    "8x64": "send, 8 connections with 64 in flight",
    "1x1": "send, 1 connection with 1 in flight",
    "batch": "send of batches of 32, 8 connections with 4 in flight",
}
_SHAPES: Final[Mapping[str, Mapping[str, int]]] = {
    "64x1": {"conns": 64, "window": 1},
    "8x64": {"conns": 8, "window": 64},
    "1x1": {"conns": 1, "window": 1},
    "batch": {"conns": 8, "window": 4, "batch": 32},
}
_GOALS: Final[Mapping[tuple[str, Flush], tuple[float, float | None, float | None]]] = {
    ("64x1", "async"): (3, 4, 10),
    ("64x1", "sync"): (3, 4, None),
    ("8x64", "async"): (4, 5, None),
    ("8x64", "sync"): (4, 5, None),
    ("1x1", "async"): (1.3, None, None),
    ("1x1", "sync"): (3, None, None),
    ("batch", "async"): (2, None, None),
    ("batch", "sync"): (3, None, None),
}
"""Goals: ratio to Java's rate, ratio of Java's CPU to Kourou's, p99 in milliseconds."""


def _measure(turn: Turn, shape: str, flush: Flush) -> Values | None:
    if not turn.supports("batch" if shape == "batch" else "send"):
        return None
    report = turn.load(flush, "send", topic=f"bench-{shape}", size=1024, **_SHAPES[shape])
    messages = max(1, report["msgs"])
    return {
        "rate": report["msgs_per_s"],
        "p50": report["lat_us"]["p50"] / 1000,
        "p99": report["lat_us"]["p99"] / 1000,
        "server CPU": report["server_cpu_s"] * 1e6 / messages,
    }


def _question(shape: str, flush: Flush) -> Question:
    rate, cpu, p99_ms = _GOALS[shape, flush]
    figures = (
        Figure("rate", "messages/s", is_more_better=True, ratio=rate),
        Figure("p50", "ms"),
        Figure("p99", "ms", limit=p99_ms),
        Figure("server CPU", "us/message", ratio=cpu),
    )
    return Question(
        name=f"send-{shape}-{flush}",
        text=f"{_TEXTS[shape]}, {flush} flush",
        figures=figures,
        measure=lambda turn: _measure(turn, shape, flush),
    )


QUESTIONS: Final = tuple(_question(*each) for each in _GOALS)
