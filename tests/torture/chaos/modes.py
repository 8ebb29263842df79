"""Changes the mode of a group between pull and pop while its members are killed and closed.

The members are processes whose queues the broker assigns; it also says how they consume them. A
message may be delivered to several of them, in both modes; none may be lost.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from kourou import AdminClient, Message, Producer
from kourou.errors import KourouError
from tests.torture.chaos.ledger import body_of
from tests.torture.figures import Figure, Outcome, Size, counted
from tests.torture.filled import warnings
from tests.torture.real_broker import RealBroker

FAULT: Final = "modes"
LOST: Final = "acknowledged, but not delivered"
STRANGE: Final = "delivered, but never sent"
TRACED: Final = "members that ended with an error"
DAMAGE: Final = "findings of store check"
WORK: Final = "changes of mode, messages in each mode, kills and closes"
_MODES: Final = ("pop", "pull")
_CHANGES: Final = ("changes to pop", "changes to pull")
_ENDS: Final = ("members killed", "members closed")
_WORK: Final = (*_CHANGES, *_MODES, *_ENDS)
TOPIC: Final = "Changed"
GROUP: Final = "changing"
MEMBERS: Final = 3
QUEUES: Final = 6
SETTINGS: Final = "messageDelayLevel=1s 1s 1s 2s 2s 4s 4s\n"
REST_S: Final = 0.01
"""Pause between two messages of the sender."""
ALIVE_S: Final = (3.0, 12.0)
MODE_S: Final = (2.0, 8.0)
"""Durations of the life of a member, and of a mode; shorter with few messages."""
PATIENCE_S: Final = 90
"""Limit of a wait without any delivery."""
CLOSE_S: Final = 60


@dataclass
class Handled:
    """The messages, as the sender and the members report them.

    Attributes:
        sent: keys of all messages whose send has begun.
        acknowledged: those whose send was acknowledged.
        handled: number of finished deliveries by key.
        counts: numbers of events by name.
        failures: (figure, description) of each failure.
        is_over: all messages are sent: members are not ended any more, and the mode stays.
        is_done: ends the members.
    """

    sent: set[str] = field(default_factory=set)
    acknowledged: set[str] = field(default_factory=set)
    handled: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[str, str]] = field(default_factory=list)
    is_over: asyncio.Event = field(default_factory=asyncio.Event)
    is_done: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def missing(self) -> set[str]:
        return self.acknowledged - self.handled.keys()


def run(size: Size) -> list[Figure]:
    """Return the figures of `size.messages` messages."""
    with tempfile.TemporaryDirectory(prefix="modes-") as made:
        broker = RealBroker(Path(made), settings=SETTINGS)
        try:
            with warnings():
                handled = asyncio.run(_change(broker, Path(made), size))
            stopped = broker.stop()
            if stopped.code or stopped.err:
                handled.failures.append((TRACED, f"the broker: {stopped.code} {stopped.err}"))
            handled.failures += [(DAMAGE, text) for text in broker.findings()]
        finally:
            broker.end()
    counts = handled.counts
    counts["deliveries of messages delivered before"] = handled.handled.total() - len(
        handled.handled
    )
    for name, count in sorted(counts.items()):
        size.say(f"{FAULT}: {name}: {count:,}")
    work = [counts[name] for name in _WORK]
    outcome = Outcome(counts, handled.failures)
    outcome.counts["messages"] = len(handled.acknowledged)
    return [
        *(counted(FAULT, name, outcome, "messages") for name in (LOST, STRANGE, TRACED, DAMAGE)),
        Figure(FAULT, WORK, " ".join(map(str, work)), "1 or more of each", held=all(work)),
    ]


async def _change(broker: RealBroker, directory: Path, size: Size) -> Handled:
    handled, dice, namesrv = Handled(), Random(size.seed), broker.serving.namesrv
    members = _Members(handled, namesrv, dice, directory, size.messages * REST_S)
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(AdminClient(namesrv))
        await admin.create_topic(TOPIC, queues=QUEUES)
        producer = await stack.enter_async_context(Producer("senders", namesrv))
        async with asyncio.TaskGroup() as tasks:
            for _ in range(MEMBERS):
                tasks.create_task(members.run())
            tasks.create_task(_change_mode(admin, handled, dice, size.messages * REST_S))
            ends_at_s = time.perf_counter() + size.messages * REST_S + PATIENCE_S
            for number in itertools.count():
                is_worked = all(handled.counts[name] for name in _WORK)
                if number >= size.messages and (is_worked or time.perf_counter() > ends_at_s):
                    break
                await _send(producer, f"mode-{number}", handled)
            handled.is_over.set()
            await _until_handled(handled)
            handled.is_done.set()
    handled.failures += [(LOST, key) for key in sorted(handled.missing)]
    strange = sorted(handled.handled.keys() - handled.sent)
    handled.failures += [(STRANGE, key) for key in strange]
    return handled


async def _send(producer: Producer, key: str, handled: Handled) -> None:
    handled.sent.add(key)
    try:
        await producer.send(Message(TOPIC, body_of(key), keys=[key]))
    except KourouError as error:
        handled.counts[f"sends that failed: {type(error).__name__}"] += 1
    else:
        handled.acknowledged.add(key)
    await asyncio.sleep(REST_S)


async def _change_mode(
    admin: AdminClient, handled: Handled, dice: Random, duration_s: float
) -> None:
    """Change the mode again and again, each time after deliveries in it, until the sends end."""
    for mode, change in itertools.cycle(zip(_MODES, _CHANGES, strict=True)):
        await admin.set_request_mode(TOPIC, GROUP, is_pop=mode == "pop")
        before = handled.counts[mode]
        handled.counts[change] += 1
        await _wait(handled.is_over, _within(MODE_S, duration_s, dice))
        while handled.counts[mode] == before and not handled.is_over.is_set():
            await _wait(handled.is_over, 0.1)
        if handled.is_over.is_set():
            return


async def _until_handled(handled: Handled) -> None:
    """Wait until all acknowledged messages are handled, or none is any more."""
    count, at_s = 0, time.perf_counter()
    while missing := handled.missing:
        if len(missing) != count:
            count, at_s = len(missing), time.perf_counter()
        elif time.perf_counter() > at_s + PATIENCE_S:
            return
        await asyncio.sleep(0.2)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, `seconds` at most."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


def _within(seconds: tuple[float, float], duration_s: float, dice: Random) -> float:
    shortest_s, longest_s = seconds
    least_s = min(shortest_s, max(1, duration_s / 4))
    return dice.uniform(least_s, max(least_s, min(longest_s, duration_s / 2)))


class _Members:
    """The processes of the group.

    Args:
        handled: records what they report.
        namesrv: the name server's address.
        dice: decides when and how they end.
        directory: for their error output.
        duration_s: estimated duration of the run.
    """

    def __init__(
        self, handled: Handled, namesrv: str, dice: Random, directory: Path, duration_s: float
    ) -> None:
        self._handled = handled
        self._namesrv = namesrv
        self._dice = dice
        self._directory = directory
        self._duration_s = duration_s
        self._numbers = itertools.count()

    async def run(self) -> None:
        """Run one member after the other; all but the last are killed or closed early."""
        while not self._handled.is_done.is_set():
            number = next(self._numbers)
            name = f"member-{number}"
            errors = self._directory / name
            with errors.open("wb") as file:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "tests.torture.chaos.mode_member"),
                    *(self._namesrv, GROUP, TOPIC, name),
                    stdout=asyncio.subprocess.PIPE,
                    stderr=file,
                )
            assert process.stdout is not None
            await process.stdout.readline()  # a signal before it would end the process at once
            reading = asyncio.create_task(self._read(process.stdout))
            living = asyncio.create_task(self._live())
            try:
                await asyncio.wait({reading, living}, return_when=asyncio.FIRST_COMPLETED)
                is_killed = number % 2 == 0 and not self._handled.is_done.is_set()
                if process.returncode is None:
                    process.send_signal(signal.SIGKILL if is_killed else signal.SIGTERM)
                code = await asyncio.wait_for(process.wait(), CLOSE_S)
                self._handled.counts[_ENDS[0] if is_killed else _ENDS[1]] += 1
            finally:
                living.cancel()
                if process.returncode is None:
                    process.kill()
                await reading
            if code != (-signal.SIGKILL if is_killed else 0):
                text = f"{name} ended with {code}: {errors.read_text()[-3000:]}"
                self._handled.failures.append((TRACED, text))

    async def _live(self) -> None:
        """Wait until a member is to be ended."""
        await _wait(self._handled.is_over, _within(ALIVE_S, self._duration_s, self._dice))
        if self._handled.is_over.is_set():
            await self._handled.is_done.wait()

    async def _read(self, reports: asyncio.StreamReader) -> None:
        """Record the reports of a member until it ends."""
        async for line in reports:
            if line.endswith(b"\n"):
                key, mode = line.decode().split()
                self._handled.handled[key] += 1
                self._handled.counts[mode] += 1
