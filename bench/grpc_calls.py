"""Measures the calls of gRPC clients: sends of 1 KB, receives of 32 with one ack, latency.

Broker and proxy are one process, of Kourou as of Java (its proxy in local mode).
"""

from __future__ import annotations

import time
from typing import Final

from bench.end_to_end import RATE
from bench.question import Figure, Question, Values
from bench.servers import Flush
from bench.turn import Turn

STREAMS: Final = 5_000
_FILL_RATE: Final = 60_000
"""Messages for each second of a receive: more than any peer receives."""
_PAUSE_SECONDS: Final = 2.0


def _send(turn: Turn, flush: Flush, conns: int, window: int, *, is_tls: bool) -> Values | None:
    if turn.peer.start_with_proxy is None:
        return None
    report = turn.load_grpc(
        flush, "send", topic="grpc-send", conns=conns, window=window, size=1024,
        tls=str(is_tls).lower(),
    )  # fmt: skip
    return {
        "rate": report["msgs_per_s"],
        "p50": report["lat_us"]["p50"] / 1000,
        "p99": report["lat_us"]["p99"] / 1000,
        "server CPU": report["server_cpu_s"] * 1e6 / max(1, report["msgs"]),
    }


def _send_question(
    flush: Flush, conns: int, window: int, ratios: tuple[float, float] | None, *, is_tls: bool
) -> Question:
    rate, cpu = ratios or (None, None)
    name = f"{conns}x{window}-{flush}" + ("-tls" if is_tls else "")
    connections = "1 connection" if conns == 1 else f"{conns} connections"
    return Question(
        name=f"grpc-send-{name}",
        text=f"gRPC send, {connections} with {window} in flight, {'TLS, ' if is_tls else ''}"
        f"{flush} flush",
        figures=(
            Figure("rate", "messages/s", is_more_better=True, ratio=rate),
            Figure("p50", "ms"),
            Figure("p99", "ms"),
            Figure("server CPU", "us/message", ratio=cpu),
        ),
        measure=lambda turn: _send(turn, flush, conns, window, is_tls=is_tls),
    )


def _receive(turn: Turn) -> Values | None:
    if turn.peer.start_with_proxy is None:
        return None
    topic, group = "grpc-receive", f"grpc-{time.time_ns()}"
    turn.load_grpc("async", "prime", topic=topic, group=group)
    # The proxy begins at the end of the topic for a new group: the messages are sent afterwards.
    count = int(_FILL_RATE * (turn.seconds + turn.peer.first_warm_s))
    server = turn.stage.server(turn.peer, "async", has_proxy=True)
    server.load("send", topic=topic, conns=64, window=1, count=count, dur="120s")
    report = turn.load_grpc(
        "async", "receive", topic=topic, group=group, conns=8, window=1, ackentries=32
    )
    if report["empty"]:
        raise RuntimeError(f"the {count} messages did not last for the measured time")
    return {
        "rate": report["msgs_per_s"],
        "server CPU": report["server_cpu_s"] * 1e6 / max(1, report["msgs"]),
    }


def _latency(turn: Turn) -> Values | None:
    if turn.peer.start_with_proxy is None:
        return None
    report = turn.load_grpc("async", "e2e", topic="grpc-e2e", window=8, rate=RATE)
    return {name: report["lat_us"][key] / 1000 for name, key in (("p50", "p50"), ("p99", "p99"))}


def _idle(turn: Turn, *, is_tls: bool) -> Values | None:
    if turn.peer.start_with_proxy is None:
        return None
    report = turn.load_grpc(
        "async", "idle", topic="grpc-idle", conns=STREAMS, dur="15s", tls=str(is_tls).lower()
    )
    return {"more memory": report["rss_mb"] - report["rss_before_mb"]}


def _idle_question(limit_mb: float, *, is_tls: bool) -> Question:
    return Question(
        name="grpc-idle" + ("-tls" if is_tls else ""),
        text=f"gRPC, {STREAMS:,} connections with an idle telemetry stream"
        + (", TLS" if is_tls else ""),
        figures=(Figure("more memory", "MiB", limit=limit_mb),),
        measure=lambda turn: _idle(turn, is_tls=is_tls),
        is_long=True,
    )


def _start_up(turn: Turn) -> Values | None:
    if turn.peer.start_with_proxy is None:
        return None
    with turn.fresh("sync", has_proxy=True) as server:
        time.sleep(_PAUSE_SECONDS)
        return {"to first send": server.ready_s, "memory": server.anonymous_mb()}


QUESTIONS: Final = (
    _send_question("async", 1, 64, (2.5, 3), is_tls=False),
    _send_question("async", 8, 8, (3, 3), is_tls=False),
    _send_question("async", 1, 64, (3, 3), is_tls=True),
    _send_question("async", 8, 8, (3, 3), is_tls=True),
    _send_question("sync", 8, 8, None, is_tls=False),
    Question(
        name="grpc-receive",
        text="gRPC receive of 32 with one ack, 8 connections, async flush",
        figures=(
            Figure("rate", "messages/s", is_more_better=True, ratio=2),
            Figure("server CPU", "us/message", ratio=2),
        ),
        measure=_receive,
    ),
    Question(
        name="grpc-e2e",
        text=f"gRPC, end to end at {RATE:,}/s, async flush",
        figures=(Figure("p50", "ms", limit=1), Figure("p99", "ms")),
        measure=_latency,
    ),
    _idle_question(200, is_tls=False),
    _idle_question(400, is_tls=True),
    Question(
        name="grpc-start-up",
        text="name server, broker and gRPC proxy",
        figures=(
            Figure("to first send", "s", limit=1.0),
            Figure("memory", "MiB", limit=70),
        ),
        measure=_start_up,
        is_once=True,
    ),
)
