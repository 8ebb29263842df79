"""Measures the official Python SDK: one process, by gRPC through the Java proxy.

    python -m bench.python_sdk [--seconds 5] [--flush sync|async]

The SDK is the official way to use RocketMQ from Python; bench/client_send.py and
bench/client_consume.py measure the same for Kourou's clients. Broker and proxy are one Java process
(the proxy's `local` mode). The SDK is installed from PyPI into var/bench/python-sdk.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from bench import java_server, load_generator

REQUIREMENT: Final = "rocketmq-python-client==5.1.2"
HOME: Final = load_generator.VAR / "python-sdk"
FILL: Final = 50_000
_TOPIC: Final = "bench-sdk"
_GROUP: Final = "bench-sdk-consumers"
_TEXTS: Final = {
    "send": "send, one after the other",
    "send_async": "send_async, 256 in flight",
    "receive": "PushConsumer, 20 threads, listener and acknowledgment",
}
_INSTALL_SECONDS: Final = 300
_RUN_SECONDS: Final = 300


def missing() -> str | None:
    """Return the reason why the SDK cannot run here, or None after installing it."""
    reason = java_server.missing()
    if reason is not None or (HOME / ".whole").exists():
        return reason
    pip = str(HOME / "bin" / "pip")
    try:
        for words in (
            (sys.executable, "-m", "venv", str(HOME)),
            (pip, "install", "-q", REQUIREMENT),
        ):
            subprocess.run(words, check=True, timeout=_INSTALL_SECONDS)
    except subprocess.SubprocessError as error:
        return f"the SDK could not be installed: {error}"
    (HOME / ".whole").touch()
    return None


def measure(home: Path, flush: str, seconds: float) -> dict[str, float]:
    """Return messages per second by operation of the SDK.

    Raises:
        RuntimeError: the SDK failed.
    """
    server = java_server.start_with_proxy(home, "sync" if flush == "sync" else "async")
    try:
        where = {"addr": server.broker_addr, "topic": _TOPIC, "group": _GROUP}
        load_generator.run("setup", **where)
        # Messages for the consumer; they also warm up the broker.
        load_generator.attempt("send", **where, conns=64, window=1, count=FILL, dur="120s")
        program = str(Path(__file__).with_name("python_sdk_client.py"))
        done = subprocess.run(
            [str(HOME / "bin" / "python"), program, server.grpc_addr, _TOPIC, _GROUP, str(seconds)],
            capture_output=True,
            text=True,
            timeout=_RUN_SECONDS,
            check=False,
            cwd=home,
            env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
        )
        if done.returncode != 0:
            raise RuntimeError(f"the SDK exited with {done.returncode}: {done.stderr[-800:]}")
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found
    finally:
        server.kill()


def main() -> None:
    """Print a table, or one line with the missing requirement."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that all servers are stopped
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--flush", choices=("sync", "async"), default="async")
    args = parser.parse_args()
    console = Console()
    reason = missing()
    if reason is not None:
        console.print(f"skipped: {reason}", markup=False)
        return
    load_generator.build()
    with tempfile.TemporaryDirectory(prefix="sdk-", dir=load_generator.VAR) as directory:
        found = measure(Path(directory) / "server", args.flush, args.seconds)
    table = Table("messages of 1 KB", "messages/s", title=f"{REQUIREMENT}, {args.flush} flush")
    for name, rate in found.items():
        table.add_row(_TEXTS[name], f"{rate:,.0f}")
    console.print(table)


if __name__ == "__main__":
    main()
