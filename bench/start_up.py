"""How long until a freshly started server takes a send?"""

from __future__ import annotations

from bench import load_generator
from bench.servers import Server


def measure(server: Server, seconds: int) -> dict[str, float]:
    """Return the start-up time; a send right after it must succeed."""
    load_generator.run("wait", kind="send", addr=server.broker_addr, patience=f"{seconds * 4}s")
    return {"ready after start, s": server.ready_s}
