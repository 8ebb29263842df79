"""Measures the send rate of Kourou's `Producer` and of the official Python SDK, with 1 KB messages.

Kourou's client sends to Kourou's broker; the official SDK sends by gRPC through the Java proxy.
Both brokers flush asynchronously, so that the clients limit the rate.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Final

from bench import python_sdk
from bench.load_generator import ROOT
from bench.peers import JAVA
from bench.question import Figure, Question, Values
from bench.turn import Turn

_BACKGROUND: Final = "in background"
_ONE: Final = "one after the other"
_SHAPES: Final = {_BACKGROUND: "submit", _ONE: "send1"}
_RUN_SECONDS: Final = 120


def _measure(turn: Turn) -> Values | None:
    if turn.peer.name == JAVA:
        return _of_sdk(turn)
    if turn.peer.client is None:
        return None
    server = turn.stage.server(turn.peer, "async")
    python, loop = turn.peer.client
    rates = {}
    for name, shape in _SHAPES.items():
        words = ("--namesrv", server.namesrv_addr, "--shape", shape, "--loop", loop)
        done = subprocess.run(
            [python, "-m", "bench.client_send", *words, "--seconds", str(turn.seconds)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=_RUN_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"the client exited with {done.returncode}: {done.stderr[-500:]}")
        rates[name] = json.loads(done.stdout)["rate"]
    return rates


def _of_sdk(turn: Turn) -> Values | None:
    if python_sdk.missing() is not None:
        return None
    turn.stage.suspend_all()
    home: Path = turn.stage.directory("sdk")
    try:
        found = python_sdk.measure(home, "async", turn.seconds)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return {_BACKGROUND: found["send_async"], _ONE: found["send"]}


QUESTIONS: Final = (
    Question(
        name="producer",
        text="our Producer (java: its SDK for Python)",
        figures=(
            Figure(_BACKGROUND, "messages/s", is_more_better=True, limit=30_000),
            Figure(_ONE, "messages/s", is_more_better=True),
        ),
        measure=_measure,
        is_long=True,
        is_once=True,
    ),
)
