"""A sender with the Java client 5.5.0, in a process of its own."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from pathlib import Path
from typing import Final

from tests.interop import clients
from tests.torture.replicas.ledger import SENDERS, TOPIC, Ledger, Sent
from tests.torture.replicas.processes import NAME

_QUEUE: Final = SENDERS
_POLL_MS: Final = 1_000
"""How often the client asks for routes. With its default, 30 s, it finds another master that late:
it does not ask again after a failure."""


def _build(classes: Path) -> tuple[str, ...]:
    """Return the command line before its arguments."""
    library = clients.jars("5.5.0")
    classes.mkdir()
    source = Path(__file__).parent / "Sends.java"
    subprocess.run(
        ["javac", "-nowarn", "-cp", library, "-d", str(classes), str(source)], check=True
    )
    return (*clients.java(f"{clients.HERE / 'java' / 'quiet'}:{classes}:{library}"), "Sends")


async def send_by_java(ledger: Ledger, namesrv: str, directory: Path) -> None:
    """Send until cancelled."""
    command = await asyncio.to_thread(_build, directory / "java")
    process = await asyncio.create_subprocess_exec(
        *(*command, namesrv, TOPIC, NAME, str(_QUEUE), str(_POLL_MS)),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=directory,
    )
    assert process.stdout is not None
    pausing = asyncio.create_task(_pause_with_others(process, ledger))
    try:
        while line := (await process.stdout.readline()).decode():
            word, number, offset = line.split(" ", 2)
            if word != "ok":
                ledger.refused += 1
                continue
            now_s = time.perf_counter()
            body = f"{_QUEUE}-{number}-".encode()
            ledger.acknowledge((_QUEUE, int(offset)), body, Sent(now_s, now_s, by_java=True))
    finally:
        pausing.cancel()
        process.kill()
        await process.wait()


async def _pause_with_others(process: asyncio.subprocess.Process, ledger: Ledger) -> None:
    """Stop the process while nothing may be sent."""
    while True:
        ledger.in_flight += 1
        while ledger.may_send.is_set():  # noqa: ASYNC110 - an event tells only the opposite
            await asyncio.sleep(0.05)
        process.send_signal(signal.SIGSTOP)
        ledger.in_flight -= 1
        await ledger.may_send.wait()
        process.send_signal(signal.SIGCONT)
