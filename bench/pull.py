"""How many 1 KB messages a second does a broker hand out to 8 pulling connections?"""

from __future__ import annotations

from bench import load_generator
from bench.servers import Server

FILL = 100_000


def measure(server: Server, seconds: int) -> dict[str, float]:
    """Return the rate of catch-up reading, 32 messages a request, and its CPU a message."""
    where = {"addr": server.broker_addr, "topic": "bench-pull"}
    load_generator.run("send", **where, conns=64, window=4, size=1024, count=FILL)
    result = load_generator.run(
        "pull",
        **where,
        conns=8,
        window=1,
        warm="4s",
        dur=f"{seconds}s",
        pids=",".join(map(str, server.pids)),
    )
    rate = result["msgs_per_s"]
    return {
        "pull, 8 connections, 1 KB, messages/s": rate,
        "pull, server CPU a message, us": result["server_cpu_s"] * 1e6 / (rate * seconds),
    }
