"""Errors in the n-th system call of a real broker, by a preloaded C library, for n up to 200.

EIO, ENOSPC, EINTR and short writes in any call that changes a file of the store. After a failure
that makes the store read-only, the broker is killed and started again, and the acknowledged
messages are read back at their queues and offsets.
"""

from __future__ import annotations

import asyncio
import errno
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

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
from tests.torture.figures import Figure, Outcome, Size, counted
from tests.torture.real_broker import RealBroker, troubles
from tests.torture.shim import ALL, REPEATED, WRITES, Shim, build, compiler

FAULT: Final = "failing call, C shim"
SHORT: Final = 0
ERRORS: Final = {errno.EIO: ALL, errno.ENOSPC: ALL, errno.EINTR: REPEATED, SHORT: WRITES}
HARMLESS: Final = (errno.EINTR, SHORT)
HIT_WITHIN_S: Final = 20.0
AFTERWARDS_S: Final = 0.3
SETTLED_WITHIN_S: Final = 60.0
POLL_S: Final = 0.01


@dataclass
class Torture:
    """One broker, its shim, and the ledger of all acknowledged messages.

    Attributes:
        ledger: the body at each queue and offset.
        verified: for each queue, the offset below which all messages were read back.
        delays_ms: time from each failed call to the first /readyz that reports it.
        refusals_ms: time from each failed call to the first refused send.
    """

    broker: RealBroker
    shim: Shim
    outcome: Outcome = field(default_factory=Outcome)
    ledger: dict[tuple[int, int], bytes] = field(default_factory=dict)
    verified: dict[int, int] = field(default_factory=dict)
    delays_ms: list[float] = field(default_factory=list)
    refusals_ms: list[float] = field(default_factory=list)

    async def suffer(self, error: int, nth: int) -> None:
        """Make the n-th call fail, and judge the broker's behaviour."""
        observed = Observations(pause_s=0.0)
        console = str(self.broker.serving.ready["console"])
        self.shim.arm(ERRORS[error], nth, error)
        async with BrokerConnection(self.broker.serving.broker) as connection:
            loop = asyncio.get_running_loop()
            senders = [
                loop.create_task(send_on(connection, observed, nth * SENDERS + name))
                for name in range(SENDERS)
            ]
            hit = await self._watch(observed, console, error)
            self.shim.disarm()
            for sender in senders:
                sender.cancel()
            await asyncio.gather(*senders, return_exceptions=True)
        self.outcome.counts["calls" if hit.operation else "calls that never happened"] += 1
        self.ledger.update(observed.acknowledged)
        reported = (
            f"{errno.errorcode.get(error, 'short')} in call {nth}, {hit.operation} {hit.name}"
        )
        found = [] if not hit.operation else list(
            judge(hit, error, observed, is_harmless=error in HARMLESS)
        )  # fmt: skip
        self.outcome.failures += [(name, f"{reported}: {text}") for name, text in found]
        if observed.trouble_at_s is not None and hit.is_vital:
            self.delays_ms.append((observed.trouble_at_s - hit.at_s) * 1000)
            refused_s = observed.refused_after_s(hit)
            self.refusals_ms += [] if refused_s is None else [refused_s * 1000]
        if error == errno.EIO or any("read-only" in text for text in observed.troubles):
            await self.restart(reported)

    async def _watch(self, observed: Observations, console: str, error: int) -> FailedCall:
        """Return the failed call some time later, or an empty one if it never happened."""
        hit, now = FailedCall(), asyncio.get_running_loop().time
        ends_at_s = now() + HIT_WITHIN_S
        while now() < ends_at_s:
            await asyncio.sleep(POLL_S)
            found = self.shim.hit() if not hit.operation else None
            if found is not None:
                hit = FailedCall(*found)
                observed.pause_s = 0.02
                ends_at_s = now() + SETTLED_WITHIN_S
            if hit.operation and observed.trouble_at_s is None:
                observed.troubles = await troubles(console)
                if observed.troubles:
                    observed.trouble_at_s = now()
            if hit.operation and self._is_settled(hit, observed, error):
                await asyncio.sleep(AFTERWARDS_S)
                break
        return hit

    def _is_settled(self, hit: FailedCall, observed: Observations, error: int) -> bool:
        """Tell whether the broker is read-only, or accepts messages again."""
        if observed.trouble_at_s is not None and "read-only" in "".join(observed.troubles):
            return True
        goes_on = any(began_s > hit.at_s for began_s, _ in observed.acknowledged_at_s)
        is_fatal = hit.is_vital and error == errno.EIO
        return goes_on and (not is_fatal or asyncio.get_running_loop().time() > hit.at_s + 1)

    async def restart(self, reported: str) -> None:
        """Kill the broker, start it again, and read back the acknowledged messages."""
        await asyncio.to_thread(self.broker.kill)
        try:
            await asyncio.to_thread(self.broker.start)
        except AssertionError as error:
            self.outcome.failures.append((BROKEN, f"{reported}: {error}"))
            raise
        await self.read_back(reported)

    async def read_back(self, reported: str) -> None:
        """Record a failure for each acknowledged message that is not at its queue and offset."""
        async with BrokerConnection(self.broker.serving.broker) as connection:
            for queue_id in range(QUEUES):
                begin = self.verified.get(queue_id, 0)
                held = await connection.read("T", queue_id, begin)
                for (queue, offset), body in self.ledger.items():
                    if queue != queue_id or offset < begin:
                        continue
                    message = held.messages.get(offset)
                    if message is None or message.body != body:
                        self.outcome.failures.append((FALSE, f"{reported}: {queue}, {offset}"))
                self.verified[queue_id] = max(held.messages, default=begin - 1) + 1
        self.outcome.counts["acknowledged messages"] = len(self.ledger)

    async def close(self, reported: str) -> None:
        """Read back all messages, stop the broker cleanly, and check the files."""
        self.verified.clear()
        await self.read_back(reported)
        await asyncio.to_thread(self.broker.stop)
        for text in self.broker.findings():
            self.outcome.failures.append((DAMAGE, f"{reported}: {text}"))


async def _torture(library: Path, directory: Path, error: int, size: Size) -> Torture:
    """Inject one kind of error into every call, on one store."""
    name = errno.errorcode.get(error, "short")
    store = directory / name
    with Shim(library, store, directory / f"{name}.control") as shim:
        broker = await asyncio.to_thread(
            lambda: RealBroker(directory, environ=shim.environ, name=name)
        )
        torture = Torture(broker, shim)
        try:
            for nth in range(1, size.calls + 1, size.stride):
                await torture.suffer(error, nth)
                if nth % 20 == 0:
                    size.say(f"{FAULT}: {name} in call {nth} of {size.calls}")
            await torture.close(name)
        except AssertionError as failure:
            torture.outcome.failures.append((BROKEN, f"{name}: {failure}"))
        finally:
            await asyncio.to_thread(broker.end)
    return torture


def run(size: Size) -> list[Figure]:
    """Return the figures of all calls up to `size.calls`, each with every error."""
    if compiler() is None:
        return [Figure(FAULT, "not measured: this machine has no C compiler", "-", "-", held=True)]
    total, delays_ms, refusals_ms = Outcome(), [0.0], [0.0]
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        library = build(directory)
        for error in ERRORS:
            torture = asyncio.run(_torture(library, directory, error, size))
            total.add(torture.outcome)
            delays_ms += torture.delays_ms
            refusals_ms += torture.refusals_ms
    names = (FALSE, LATE, TAKEN, RETRIED, SILENT, STUCK, SLOW, DAMAGE, BROKEN)
    missed = total.counts["calls that never happened"]
    return [
        *(counted(FAULT, name, total, "calls") for name in names),
        Figure(FAULT, "/readyz reports it after, at most", f"{max(delays_ms):.0f} ms", "100 ms",
               held=max(delays_ms) <= 100),
        Figure(FAULT, "sends refused after, at most", f"{max(refusals_ms):.0f} ms", "100 ms",
               held=max(refusals_ms) <= 100),
        Figure(FAULT, "calls that never happened", str(missed), "0", held=not missed),
    ]  # fmt: skip
