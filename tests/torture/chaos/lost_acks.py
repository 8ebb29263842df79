"""Proves that the judge of pops finds lost acknowledgements.

With `enablePopBufferMerge`, as in RocketMQ, a broker has checkpoints and acknowledgements of up to
10 s in memory only; a kill loses them, and their messages are popped again. The judge must find
such messages on a broker with the buffer, and none on one without it. Both lose no message.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Final

from kourou import AdminClient, Producer, ProducerConfig
from kourou.errors import KourouError
from tests.torture.chaos import judging
from tests.torture.chaos.judging import AGAIN, COUNTED, LOST, TRACED, VISIBLE
from tests.torture.chaos.ledger import MIXED, POPPERS, Ledger, message_of, must_deliver
from tests.torture.chaos.poppers import Poppers
from tests.torture.chaos.run import judge_end, kill, until_came, watched
from tests.torture.figures import Figure, Outcome, Size, counted
from tests.torture.real_broker import RealBroker

FAULT: Final = "acks"
FOUND: Final = "with enablePopBufferMerge: acknowledged, but popped again"
SETTINGS: Final = "enablePropertyFilter=true\nenablePopBufferMerge={}\n"
SECONDS_MAX: Final = 60
MEMBERS: Final = 2
ACKS_BEFORE_KILL: Final = (20, 100)
REST_S: Final = 0.01
"""Pause between two messages of the sender."""
QUIET_S: Final = 7.0
"""Longer than the longest invisible time of the members."""
PATIENT: Final = ProducerConfig(send_timeout_ms=10_000)


def run(size: Size) -> list[Figure]:
    """Return the figures of a broker with the buffer, and of one without it."""
    with_buffer, without = _run_broker(size, "true"), _run_broker(size, "false")
    found, acked = len(with_buffer.of(AGAIN)), with_buffer.counts["acknowledged"]
    both = Outcome()
    for outcome in (with_buffer, without):
        both.add(outcome)
    return [
        Figure(FAULT, FOUND, f"{found} in {acked:,} acknowledged", "1 or more", held=found > 0),
        *(counted(FAULT, name, without, "acknowledged") for name in (AGAIN, VISIBLE, COUNTED)),
        *(counted(FAULT, name, both, "acknowledged") for name in (LOST, TRACED)),
    ]


def _run_broker(size: Size, is_buffered: str) -> Outcome:
    ledger, outcome = Ledger(), Outcome()
    with tempfile.TemporaryDirectory(prefix="acks-") as made, watched(ledger):
        asyncio.run(_lose(Path(made), is_buffered, size, ledger))
    outcome.failures = [
        (figure, f"enablePopBufferMerge={is_buffered}: {text}") for figure, text in ledger.failures
    ]
    outcome.counts["acknowledged"] = len(ledger.pops[POPPERS].acked)
    for name, count in sorted(ledger.counts.items()):
        size.say(f"{FAULT}, enablePopBufferMerge={is_buffered}: {name}: {count:,}")
    return outcome


async def _lose(directory: Path, is_buffered: str, size: Size, ledger: Ledger) -> None:
    """Kill a broker while members acknowledge, at least once, and judge the acknowledgements."""
    dice, seconds = Random(size.seed), min(size.seconds, SECONDS_MAX) / 2
    broker = RealBroker(directory, settings=SETTINGS.format(is_buffered))
    try:
        namesrv = broker.serving.namesrv
        async with AdminClient(namesrv) as admin:
            await admin.create_topic(MIXED, queues=4)
        async with AsyncExitStack() as stack:
            poppers = Poppers(
                *(ledger, namesrv, dice, directory / "poppers", SECONDS_MAX), {POPPERS: MEMBERS}
            )
            await stack.enter_async_context(poppers.consuming())
            producer = Producer("senders", namesrv, config=PATIENT)
            await stack.enter_async_context(producer)
            sending = asyncio.create_task(_send(producer, ledger))
            ends_at_s = time.perf_counter() + seconds
            while True:
                await _until_acked(ledger, dice.randint(*ACKS_BEFORE_KILL))
                await kill(broker, ledger)
                if time.perf_counter() > ends_at_s:
                    break
            ledger.is_over = True
            await sending
            await until_came(ledger, size, lambda group, _: group == POPPERS)
            await asyncio.sleep(min(QUIET_S, seconds))
        for key in sorted(ledger.missing[POPPERS]):
            ledger.fail(LOST, key)
        messages = await judging.stored(namesrv, MIXED, ledger)
        copies = Counter(judging.judge_body(ledger, message) for message in messages)
        judging.judge_pops(ledger, copies)
        stopped = await asyncio.to_thread(broker.stop)
        judge_end(ledger, stopped.err, stopped.code, 0)
    finally:
        broker.end()


async def _send(producer: Producer, ledger: Ledger) -> None:
    """Send messages for the members until `is_over`."""
    keys = (f"plain-{number}" for number in itertools.count())
    for key in filter(lambda key: must_deliver(POPPERS, key), keys):
        if ledger.is_over:
            return
        ledger.begin(key)
        try:
            await producer.send(message_of(key))
            ledger.acknowledge(key)
        except KourouError as error:
            ledger.counts[f"sends that failed: {type(error).__name__}"] += 1
        await asyncio.sleep(REST_S)


async def _until_acked(ledger: Ledger, count: int) -> None:
    """Wait until members have acknowledged `count` more messages."""
    acked = ledger.pops[POPPERS].acked
    goal = len(acked) + count
    async with asyncio.timeout(120):
        while len(acked) < goal:  # noqa: ASYNC110 - processes move it
            await asyncio.sleep(0.01)
