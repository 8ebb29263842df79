"""Everything at once under a real broker that is killed with -9 every 3 to 10 seconds.

Half of the time it syncs each message, half of the time it does not: what a process wrote outlives
it either way.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final

from kourou import AdminClient
from tests.torture.chaos import judging
from tests.torture.chaos.consumers import Consumers, RefusedError
from tests.torture.chaos.judging import DAMAGE, FIGURES, TRACED
from tests.torture.chaos.ledger import ASKED, MIXED, ORDERS, Ledger
from tests.torture.chaos.senders import LEVELS_MS, Senders
from tests.torture.figures import Figure, Outcome, Size, counted
from tests.torture.real_broker import RealBroker

FAULT: Final = "chaos"
SETTINGS: Final = f"""
enablePropertyFilter=true
enableMixedMessageType=true
recallMessageEnable=true
messageDelayLevel={" ".join(f"{ms // 1_000}s" for ms in LEVELS_MS)}
timerRollWindowSlot=12
mappedFileSizeTimerLog=10400
transactionTimeOut=1500
transactionCheckInterval=700
transactionCheckMax=1000
transactionOpBatchInterval=400
"""
MODES: Final = ("SYNC_FLUSH", "ASYNC_FLUSH")
ALIVE_S: Final = (3.0, 10.0)
PATIENCE_S: Final = 120
"""While nothing comes; the locks of ordered members that died last a minute."""
QUIET_S: Final = 12.0
LONGEST_MS: Final = 40_000
"""Of messages for later."""


def run(size: Size, modes: Sequence[str] = MODES) -> list[Figure]:
    """Return the figures of as many seconds of it as `size` says, divided between the modes."""
    outcome = Outcome()
    for mode in modes:
        ledger = Ledger()
        with tempfile.TemporaryDirectory(prefix="chaos-") as made, _watched(ledger):
            asyncio.run(
                _chaos(Path(made), mode, replace(size, seconds=size.seconds // len(modes)), ledger)
            )
        for name, count in sorted(ledger.counts.items()):
            size.say(f"{FAULT}, {mode}: {name}: {count:,}")
        outcome.failures += [(figure, f"{mode}: {text}") for figure, text in ledger.failures]
        outcome.counts.update(ledger.counts)
    return [counted(FAULT, name, outcome, "messages acknowledged") for name in FIGURES]


async def _chaos(directory: Path, mode: str, size: Size, ledger: Ledger) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _, context: _unheard(ledger, context))
    broker = RealBroker(directory, settings=f"{SETTINGS}flushDiskType={mode}\n")
    try:
        namesrv = broker.serving.namesrv
        async with AdminClient(namesrv) as admin:
            for topic in (MIXED, ORDERS, ASKED):
                await admin.create_topic(topic, queues=6)
        dice = Random(size.seed)
        journals = directory / "journals"
        journals.mkdir()
        longest_ms = min(LONGEST_MS, size.seconds * 500)
        senders = Senders(ledger, namesrv, dice, journals, longest_ms)
        consumers = Consumers(ledger, namesrv, dice, directory / "offsets")
        async with consumers.taking(), senders.sending() as sending:
            await _kill_again_and_again(broker, size, ledger, dice)
            ledger.is_over = True
            for ended in await asyncio.gather(*sending, return_exceptions=True):
                if isinstance(ended, BaseException):
                    ledger.fail(TRACED, f"a sender ended: {ended!r}")
            await _settle(ledger, size)
        judging.judge(ledger)
        judging.judge_deliveries(ledger)
        await judging.judge_stored(ledger, namesrv)
        stopped = await asyncio.to_thread(broker.stop)
        _judge_end(ledger, stopped.err, stopped.code, 0)
        for finding in await asyncio.to_thread(broker.findings):
            ledger.fail(DAMAGE, finding)
    finally:
        broker.end()


async def _kill_again_and_again(
    broker: RealBroker, size: Size, ledger: Ledger, dice: Random
) -> None:
    ends_at_s = time.perf_counter() + size.seconds
    while time.perf_counter() < ends_at_s:
        await asyncio.sleep(dice.uniform(*ALIVE_S))
        ended = await asyncio.to_thread(broker.serving.stop, signal.SIGKILL)
        _judge_end(ledger, ended.err, ended.code, -signal.SIGKILL)
        await asyncio.to_thread(broker.start)
        ledger.counts["kills"] += 1
        if ledger.counts["kills"] % 20 == 0:
            failures = len(ledger.failures)
            said = f"{ledger.counts['kills']} kills, {len(ledger.acknowledged):,} messages"
            size.say(f"{FAULT}: {said}, {failures} failures, {_missing(ledger)}")
            if failures:
                size.say(f"  first: {ledger.failures[0]}")


async def _settle(ledger: Ledger, size: Size) -> None:
    """Wait until all that was promised has come, and a while for what must not."""
    before, waited_s = 0, 0
    while left := sum(map(len, ledger.missing.values())):
        waited_s = 0 if left != before else waited_s + 1
        before = left
        if waited_s > PATIENCE_S:
            size.say(f"{FAULT}: still missing: {_missing(ledger)}")
            break
        await asyncio.sleep(1)
    await asyncio.sleep(min(QUIET_S, size.seconds / 5))


def _missing(ledger: Ledger) -> str:
    return ", ".join(f"{group} -{len(keys)}" for group, keys in ledger.missing.items())


def _judge_end(ledger: Ledger, err: str, code: int, wanted: int) -> None:
    if err or code != wanted:
        ledger.fail(TRACED, f"the broker ended with {code}: {err[:3000]}")


def _unheard(ledger: Ledger, context: Mapping[str, Any]) -> None:
    ledger.fail(TRACED, f"{context.get('message')}: {context.get('exception')!r}")


@contextmanager
def _watched(ledger: Ledger) -> Iterator[None]:
    """Note what clients log as errors, but what listeners raise on purpose."""

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            error = record.exc_info[1] if record.exc_info else None
            if record.levelno >= logging.ERROR and not isinstance(error, RefusedError):
                ledger.fail(TRACED, f"{record.getMessage()}: {error!r}")

    logger, handler = logging.getLogger("kourou"), Collector()
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates
