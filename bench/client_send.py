"""Measures rate and CPU time of Kourou's `Producer` with 1 KB messages.

    python -m bench.client_send [--seconds S] [--rounds N] [--flush sync|async]
                                [--loop asyncio|uvloop] [--namesrv HOST:PORT]

Three shapes: `submit` with the default of at most 1,024 messages in flight; 256 tasks that await
`send`; one task that awaits `send`. The client is a separate process on the same cores as the
broker. CPU time includes the kernel, and is given per message.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

from bench.servers import Server, kourou
from kourou.client.sending.producer import Producer
from kourou.model.message import Message

BODY: Final = os.urandom(1024)
TASKS: Final = 256
SHAPES: Final = ("submit", "send256", "send1")
_TEXTS: Final = {
    "submit": "in background",
    "send256": f"{TASKS} tasks",
    "send1": "one task",
}
_WARM_S: Final = 1.0
_TURN: Final = 256
"""Number of messages between two reads of the clock."""


async def _submit(producer: Producer, topic: str, until_s: float) -> int:
    """Submit messages until `until_s`; return the number of stored messages."""
    sent = 0
    while time.monotonic() < until_s:
        for _ in range(_TURN):
            await producer.submit(Message(topic, BODY))
        sent += _TURN
    await producer.flush()
    return sent


async def _send(producer: Producer, topic: str, until_s: float) -> int:
    """Send messages one by one until `until_s`; return the number of stored messages."""
    sent = 0
    while time.monotonic() < until_s:
        await producer.send(Message(topic, BODY))
        sent += 1
    return sent


async def _send_many(producer: Producer, topic: str, until_s: float) -> int:
    return sum(await asyncio.gather(*(_send(producer, topic, until_s) for _ in range(TASKS))))


_RUNS: Final[dict[str, Callable[[Producer, str, float], Awaitable[int]]]] = {
    "submit": _submit,
    "send256": _send_many,
    "send1": _send,
}


async def _client(namesrv_addr: str, shape: str, seconds: float) -> dict[str, float]:
    """Return messages per second and CPU microseconds per message of one shape, after a warm-up."""
    run = _RUNS[shape]
    async with Producer("bench-send", namesrv_addr) as producer:
        await run(producer, "bench-client", time.monotonic() + _WARM_S)
        began_s, cpu_s = time.monotonic(), time.process_time()
        sent = await run(producer, "bench-client", began_s + seconds)
        took_s, cpu_s = time.monotonic() - began_s, time.process_time() - cpu_s
        assert producer.stats().failed_total == 0
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"rate": sent / took_s, "cpu_us": cpu_s * 1e6 / sent, "peak_mb": peak_mb}


def _run_client(namesrv_addr: str, shape: str, seconds: float, loop: str) -> dict[str, float]:
    """Run `_client` in a separate process."""
    words = ["-m", "bench.client_send", "--namesrv", namesrv_addr, "--shape", shape]
    words += ["--seconds", str(seconds), "--loop", loop]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the client exited with {done.returncode}: {done.stderr[-500:]}")
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def measure(server: Server, seconds: float, loop: str = "asyncio") -> dict[str, float]:
    """Return rate and client CPU of each shape."""
    figures = {}
    for shape in SHAPES:
        result = _run_client(server.namesrv_addr, shape, seconds, loop)
        name = f"client, {_TEXTS[shape]}"
        figures[f"{name}, messages/s"] = result["rate"]
        figures[f"{name}, CPU a message, us"] = result["cpu_us"]
    return figures


def _server(namesrv_addr: str | None, home: Path, flush: str) -> AbstractContextManager[Server]:
    if namesrv_addr is None:
        return kourou(home / flush, flush=flush)
    return nullcontext(Server("given", "", namesrv_addr, (), 0.0))


def main() -> None:
    """Measure one shape in this process, or all of them in separate processes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--flush", choices=("sync", "async"), action="append")
    parser.add_argument("--loop", choices=("asyncio", "uvloop"), default="asyncio")
    parser.add_argument("--namesrv", help="use a running server")
    parser.add_argument("--shape", choices=SHAPES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.shape:
        runner = asyncio.Runner()
        if options.loop == "uvloop":
            import uvloop  # noqa: PLC0415 - needed only here

            runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        with runner:
            print(json.dumps(runner.run(_client(options.namesrv, options.shape, options.seconds))))
        return
    with tempfile.TemporaryDirectory() as directory:
        for flush in options.flush or ("async", "sync"):
            with _server(options.namesrv, Path(directory), flush) as server:
                rounds = [
                    measure(server, options.seconds, options.loop) for _ in range(options.rounds)
                ]
            for name in rounds[0]:
                median = statistics.median(figures[name] for figures in rounds)
                print(f"{flush:5} {options.loop:8} {name:45} {median:10,.1f}")


if __name__ == "__main__":
    main()
