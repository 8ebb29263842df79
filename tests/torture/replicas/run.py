"""Three replicas under faults of single processes, and the times until they serve again.

Each round makes one fault, waits until all replicas are in sync again, and compares their stores
with each other and with the ledger of senders and readers.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Final

from kourou.client.administration.admin import AdminClient
from kourou.disk import OsDisk
from kourou.store.tools.check import check_store
from tests.torture.figures import Figure, Outcome, Size, counted
from tests.torture.filled import warnings
from tests.torture.replicas.comparing import (
    DIFFERS,
    GONE,
    LOST,
    TWICE,
    Compared,
    compare,
    compare_queues,
    end_of_log,
)
from tests.torture.replicas.faults import (
    ETCD,
    KILL,
    Fault,
    make,
    victim_of,
)
from tests.torture.replicas.java_sender import send_by_java
from tests.torture.replicas.ledger import (
    ORDER,
    QUEUES,
    REUSED,
    SENDERS,
    TAKEN_BACK,
    TOPIC,
    Ledger,
    Sent,
    read,
    send,
)
from tests.torture.replicas.processes import REPLICAS, ReplicaSet, has_etcd, ports_for

FAULT: Final = "replicas"
STUCK: Final = "rounds without recovery"
ENDED: Final = "processes that ended, or findings of store check"
FIGURES: Final = (LOST, REUSED, TWICE, DIFFERS, GONE, TAKEN_BACK, ORDER, STUCK, ENDED)
CONTROLLERS: Final = 3
PATIENCE_S: Final = 60.0
KILL_LIMIT_S: Final = 5.0
OTHER_LIMIT_S: Final = 10.0
SEND_LIMIT_S: Final = 3.0
_CALM_S: Final = (0.5, 2.0)
_QUEUES_WRITTEN_S: Final = 15
"""A slave learns of the last confirmed records within a second, and queues are written each second;
the rest is for a busy machine."""


@dataclass
class Times:
    """Measured seconds.

    Attributes:
        silences: longest time without an acknowledgement in each round, by fault.
        sends: durations of acknowledged sends during kills of brokers.
        load: load average at the end of each round.
    """

    silences: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    sends: list[float] = field(default_factory=list)
    load: list[float] = field(default_factory=list)


def run(size: Size) -> list[Figure]:
    """Return the figures of `size.rounds` rounds."""
    outcome, times = Outcome(), Times()
    controllers = CONTROLLERS if has_etcd() else 1
    with tempfile.TemporaryDirectory(prefix="replicas-") as made, ports_for(controllers) as ports:
        directory = Path(size.keep or made) / f"seed-{size.seed}"
        directory.mkdir(parents=True)
        replicas = ReplicaSet(directory, controllers, ports)
        try:
            with warnings():  # clients warn about lost connections
                asyncio.run(_run(replicas, size, outcome, times))
        finally:
            replicas.kill()
    outcome.counts["rounds"] = size.rounds
    figures = [counted(FAULT, name, outcome, "rounds") for name in FIGURES]
    return [*figures, *_times(times)]


def _times(times: Times) -> list[Figure]:
    figures = []
    for group, seconds in sorted(times.silences.items()):
        is_quorum = ETCD in group
        limit_s = KILL_LIMIT_S if group.startswith(KILL) else OTHER_LIMIT_S
        p50, p99 = _p50(seconds), _p99(seconds)
        figures.append(
            Figure(
                group,
                f"no acknowledgement in {len(seconds)} rounds, p50, p99",
                f"{p50:.1f} s, {p99:.1f} s",
                "-" if is_quorum else f"{limit_s:g} s",
                held=is_quorum or p99 <= limit_s,
            )
        )
    if times.sends:
        p99 = _p99(times.sends)
        name = f"{len(times.sends):,} sends while a slave dies, p99"
        held = p99 <= SEND_LIMIT_S
        figures.append(Figure(FAULT, name, f"{p99:.2f} s", f"{SEND_LIMIT_S:g} s", held=held))
    if times.load:
        figures.append(Figure(FAULT, "load average", f"{_p50(times.load):.1f}", "-", held=True))
    return figures


def _p50(seconds: list[float]) -> float:
    return statistics.median(seconds)


def _p99(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=100)[98] if len(seconds) > 99 else max(seconds)


async def _run(replicas: ReplicaSet, size: Size, outcome: Outcome, times: Times) -> None:
    ledger, compared = Ledger(), Compared()
    await replicas.start(has_etcd=has_etcd())
    if not await replicas.until_in_sync(REPLICAS, PATIENCE_S):
        outcome.failures.append((STUCK, f"the start: {await replicas.replicas()}"))
        return
    async with AdminClient(replicas.namesrv) as admin:
        await admin.create_topic(TOPIC, queues=QUEUES)
    await asyncio.sleep(2)  # slaves copy topics each second
    async with AsyncExitStack() as stack:
        for queue_id in range(SENDERS):
            _begin(stack, send(ledger, replicas.namesrv, queue_id, size.seed + queue_id))
        for name in replicas.brokers:
            _begin(stack, read(ledger, replicas.address(name)))
        ledger.may_send.set()
        if size.java:
            _begin(stack, send_by_java(ledger, replicas.namesrv, replicas.logs))
            await _until(lambda: any(one.by_java for one in ledger.sends))
        for number in range(1, size.rounds + 1):
            one = _Round(
                replicas, ledger, compared, outcome, times, Random(f"{size.seed}-{number}")
            )
            fault = await one.run(number, size)
            size.say(f"{FAULT} {number}: {fault}; {one.result}")
            if one.is_stuck:
                break
    outcome.failures += ledger.failures
    await _check(replicas, outcome)


def _begin(stack: AsyncExitStack, work: Coroutine[None, None, None]) -> None:
    task = asyncio.create_task(work)

    async def end() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    stack.push_async_callback(end)


async def _until(is_reached: Callable[[], bool]) -> bool:
    """Wait until a state is reached; return whether it is in time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            while not is_reached():  # noqa: ASYNC110 - many things may bring it about
                await asyncio.sleep(0.02)
            return True
    return False


class _Round:
    """One fault and its end."""

    def __init__(
        self,
        replicas: ReplicaSet,
        ledger: Ledger,
        compared: Compared,
        outcome: Outcome,
        times: Times,
        dice: Random,
    ) -> None:
        self._replicas = replicas
        self._ledger = ledger
        self._compared = compared
        self._outcome = outcome
        self._times = times
        self._dice = dice
        self.result = ""
        self.is_stuck = False

    async def run(self, number: int, size: Size) -> Fault:
        dice, ledger = self._dice, self._ledger
        ledger.may_send.set()
        fault = Fault.draw(dice, size.longest)
        victim = await victim_of(fault, self._replicas, dice, PATIENCE_S)
        if victim is None:
            self.result = "there is no such process"
            if fault.victim != ETCD:
                self._fail(number, fault, f"no controller leads after {PATIENCE_S:g} s")
            return fault
        await asyncio.sleep(dice.uniform(*_CALM_S))
        first, began_s = len(ledger.sends), time.perf_counter()
        await make(fault, victim, self._replicas, dice)
        healed_s = time.perf_counter()
        if not await _until(lambda: self._has_sent_since(healed_s, by_java=size.java)):
            self._fail(number, fault, f"{victim}: no send was acknowledged after it")
        elif not await self._replicas.until_in_sync(REPLICAS, PATIENCE_S):
            self._fail(number, fault, f"{victim}: {await self._replicas.replicas()}")
        sends = [one for one in ledger.sends[first:] if not one.by_java]
        self._measure(fault, sends, began_s)
        if size.java:
            by_java = [one for one in ledger.sends[first:] if one.by_java]
            silent_s = longest_silence(by_java, began_s)
            self.result += f"Java {silent_s:.2f} s, "
            self._times.silences[f"{fault.group}, Java"].append(silent_s)
        self.result = f"{victim}, {self.result}{len(sends)} sends"
        if not self.is_stuck:
            await self._compare(number, fault)
        return fault

    def _has_sent_since(self, time_s: float, *, by_java: bool) -> bool:
        """Return whether sends are acknowledged that have begun since then."""
        kinds = {one.by_java for one in self._ledger.sends[-200:] if one.began_s > time_s}
        return kinds >= ({False, True} if by_java else {False})

    def _measure(self, fault: Fault, sends: list[Sent], began_s: float) -> None:
        silent_s = longest_silence(sends, began_s)
        self.result += f"silent {silent_s:.2f} s, "
        self._times.silences[fault.group].append(silent_s)
        self._times.load.append(os.getloadavg()[0])
        if fault.kind == KILL and fault.victim == "slave":
            self._times.sends += [
                one.acknowledged_s - one.began_s for one in sends if one.began_s < began_s + 5
            ]

    def _fail(self, number: int, fault: Fault, text: str) -> None:
        self.is_stuck = True
        self._outcome.failures.append((STUCK, f"round {number}, {fault}: {text}"))

    async def _compare(self, number: int, fault: Fault) -> None:
        """Compare the stores while nothing is sent."""
        await self._ledger.until_quiet()
        stores, start = self._replicas.stores, self._compared.position
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    ends = [end_of_log(store, start) for store in stores]
                    if len(set(ends)) == 1:
                        break
                    await asyncio.sleep(0.2)
        failures = await asyncio.to_thread(compare, stores, self._ledger, self._compared)
        for _ in range(_QUEUES_WRITTEN_S):
            if not await asyncio.to_thread(compare_queues, stores, self._compared):
                break
            await asyncio.sleep(1)
        failures += await asyncio.to_thread(compare_queues, stores, self._compared)
        for name, process in self._replicas.processes.items():
            if process.exit_code is not None:
                failures.append((ENDED, f"{name} with {process.exit_code}"))
        self._outcome.failures += [
            (name, f"round {number}, {fault}: {text}") for name, text in failures
        ]
        if failures:
            self.is_stuck = True
            self.result += f", FAILED: {failures[0]}"


def longest_silence(sends: list[Sent], began_s: float) -> float:
    """Return the longest time without an acknowledgement from `began_s` on."""
    times = [began_s, *sorted(one.acknowledged_s for one in sends)]
    return max((after - before for before, after in pairwise(times)), default=0)


async def _check(replicas: ReplicaSet, outcome: Outcome) -> None:
    """Stop all processes, and check the stores."""
    codes = await replicas.close()
    outcome.failures += [(ENDED, f"{name} with {code}") for name, code in codes.items() if code > 0]
    for index, store in enumerate(replicas.stores):
        disk = OsDisk(store)
        try:
            for one in check_store(disk).findings:
                text = f"store {index}: {one.file} at {one.offset}: {one.problem}"
                outcome.failures.append((ENDED, text))
        finally:
            disk.close()
