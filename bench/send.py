"""How many 1 KB messages a second does a broker acknowledge, on disk, from 64 connections?

Each connection has one request in flight: the shape of 64 blocking producers.
"""

from __future__ import annotations

from bench import load_generator
from bench.servers import Server


def measure(server: Server, seconds: int) -> dict[str, float]:
    """Return rate, tail latency and CPU a message."""
    result = load_generator.run(
        "send",
        addr=server.broker_addr,
        topic="bench-send",
        conns=64,
        window=1,
        size=1024,
        warm="8s",
        dur=f"{seconds}s",
        pids=",".join(map(str, server.pids)),
    )
    rate = result["msgs_per_s"]
    return {
        "send, 64 connections, 1 KB, sync, messages/s": rate,
        "send p99, ms": result["lat_us"]["p99"] / 1000,
        "send, server CPU a message, us": result["server_cpu_s"] * 1e6 / (rate * seconds),
    }
