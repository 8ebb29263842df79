"""How much memory does a server hold before its first load?"""

from __future__ import annotations

from bench.servers import Server


def measure(server: Server, seconds: int) -> dict[str, float]:  # noqa: ARG001 - one shape for all
    """Return the resident memory of all its processes."""
    return {"memory at rest, MiB": server.memory_mb()}
