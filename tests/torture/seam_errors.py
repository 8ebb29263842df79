"""Errors in the n-th call of the `Disk` interface, in virtual time, for n up to 200.

A broker in sync mode receives messages while one file-changing call fails with EIO, ENOSPC or
EINTR. A failed write has written a part; the pages of a failed sync are lost. Then power is lost or
the process is killed, and the acknowledged messages are read back.
"""

from __future__ import annotations

import asyncio
import errno
from random import Random
from typing import Final

from kourou.broker.server import Broker
from kourou.remoting.network import format_address
from kourou.store.tools.check import check_store
from kourou.testing.clock import EPOCH_MS
from kourou.testing.disk import SimDisk
from kourou.testing.flusher import SimFlusher
from kourou.testing.loop import run_virtual
from kourou.testing.runtime import sim_runtime
from tests.torture.broker_connection import BrokerConnection
from tests.torture.failing_calls import (
    BROKEN,
    DAMAGE,
    FALSE,
    LATE,
    QUEUES,
    RETRIED,
    SENDERS,
    SILENT,
    SLOW,
    STUCK,
    TAKEN,
    FailedCall,
    Observations,
    judge,
    send_on,
)
from tests.torture.figures import Figure, Outcome, Size, counted, run_cases
from tests.torture.filled import CONFIG, served, warnings

FAULT: Final = "failing call, disk seam"
ERRORS: Final = (errno.EIO, errno.ENOSPC, errno.EINTR)
CHANGES: Final = ("write", "truncate", "sync", "sync_directory", "rename", "unlink")
AFTERWARDS_S: Final = 6.0
WAIT_S: Final = 60.0


def fail_call(disk: SimDisk, nth: int, number: int) -> FailedCall:
    """Make the n-th change from now on fail; return the record of that call."""
    hit, left = FailedCall(), [nth]
    loop = asyncio.get_running_loop()

    def count(operation: str, name: str) -> None:
        if operation not in CHANGES:
            return
        left[0] -= 1
        if not left[0]:
            hit.operation, hit.name, hit.at_s = operation, name, loop.time()
            raise OSError(number, errno.errorcode[number])

    disk.on_operation = count
    return hit


async def _run_broker(disk: SimDisk, nth: int, number: int, observed: Observations) -> FailedCall:
    """Run a broker until some seconds after the failed call, then kill it."""
    runtime = sim_runtime(nth, epoch_ms=EPOCH_MS)
    broker = Broker(CONFIG, disk, runtime, SimFlusher)
    address = await broker.start()
    loop = asyncio.get_running_loop()
    hit = fail_call(disk, nth, number)
    async with BrokerConnection(format_address(address), runtime) as connection:
        senders = [loop.create_task(send_on(connection, observed, name)) for name in range(SENDERS)]
        ends_at_s = loop.time() + WAIT_S
        while loop.time() < ends_at_s:
            await asyncio.sleep(0.005)
            if hit.operation and ends_at_s > hit.at_s + AFTERWARDS_S:
                observed.pause_s = 0.05
                ends_at_s = hit.at_s + AFTERWARDS_S
            if observed.trouble_at_s is None and (troubles := broker.unready_reasons()):
                observed.trouble_at_s, observed.troubles = loop.time(), troubles
        for sender in senders:
            sender.cancel()
        await asyncio.gather(*senders, return_exceptions=True)
    broker.abandon()
    await asyncio.sleep(0)
    return hit


def case(number: int) -> Outcome:
    """Return the outcome of one failing call; `number` determines the call and the error."""
    nth, error = number // len(ERRORS), ERRORS[number % len(ERRORS)]
    outcome, observed, disk = Outcome(), Observations(), SimDisk(number)
    reported = f"{errno.errorcode[error]} in call {nth}"
    try:
        with warnings():
            hit = run_virtual(_run_broker(disk, nth, error, observed))
            disk.on_operation = None
            if Random(number).random() < 0.5:
                disk.crash()
            stored = run_virtual(_read(disk))
    except Exception as problem:  # noqa: BLE001 - a finding, whatever it is
        outcome.failures.append((BROKEN, f"{reported}: {type(problem).__name__}: {problem}"))
        return outcome
    outcome.counts["calls"] += 1
    outcome.counts["acknowledged messages"] += len(observed.acknowledged)
    reported = f"{reported}, {hit.operation} {hit.name}"
    outcome.failures += [
        (name, f"{reported}: {text}")
        for name, text in judge(hit, error, observed, is_harmless=False)
    ]
    for place, body in observed.acknowledged.items():
        if stored.get(place) != body:
            outcome.failures.append((FALSE, f"{reported}: {place} was acknowledged"))
    for found in check_store(disk).findings:
        text = f"{reported}: {found.file} at {found.offset}: {found.problem}"
        outcome.failures.append((DAMAGE, text))
    return outcome


async def _read(disk: SimDisk) -> dict[tuple[int, int], bytes]:
    stored = {}
    async with served(disk) as connection:
        for queue_id in range(QUEUES):
            held = await connection.read("T", queue_id)
            for offset, message in held.messages.items():
                stored[queue_id, offset] = message.body
    return stored


def run(size: Size) -> list[Figure]:
    """Return the figures of all calls up to `size.calls`, each with every error."""
    numbers = range(len(ERRORS), (size.calls + 1) * len(ERRORS))
    outcome = run_cases(case, numbers, size, FAULT)
    names = (FALSE, LATE, TAKEN, RETRIED, SILENT, STUCK, SLOW, DAMAGE, BROKEN)
    return [counted(FAULT, name, outcome, "calls") for name in names]
