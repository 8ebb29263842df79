"""Runs the chaos test: a real broker is killed with -9 every 3 to 10 seconds.

Half of the time it runs in sync mode and half in async mode: data that a process has written
survives its kill in both.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final

from kourou import AdminClient
from tests.torture.chaos import clocks, judging
from tests.torture.chaos.clocks import FakedClock
from tests.torture.chaos.consumers import Consumers, RefusedError
from tests.torture.chaos.judging import AWAY, DAMAGE, FIGURES, TRACED, waits_for_clock
from tests.torture.chaos.keeping import keep
from tests.torture.chaos.ledger import GONE, MIXED, ORDERS, RECREATED, REQUESTS, Ledger, now_ms
from tests.torture.chaos.poppers import Poppers
from tests.torture.chaos.recreated import QUEUES, recreated_topics
from tests.torture.chaos.senders import LEVELS_MS, Senders
from tests.torture.figures import Figure, Outcome, Size, counted
from tests.torture.real_broker import RealBroker

FAULT: Final = "chaos"
SETTINGS: Final = f"""
enablePropertyFilter=true
enableMixedMessageType=true
recallMessageEnable=true
messageDelayLevel={" ".join(f"{ms // 1_000}s" for ms in LEVELS_MS)}
mappedFileSizeTimerLog=10400
transactionTimeOut=1500
transactionCheckInterval=700
transactionCheckMax=1000
transactionOpBatchInterval=400
"""
ROLLS: Final = "timerRollWindowSlot=12\n"
"""Not with a jumping clock: a kill after a jump repeats a few rolled messages."""
MODES: Final = ("SYNC_FLUSH", "ASYNC_FLUSH")
RIGHT: Final = "right"
JUMPS: Final = "jumps"
CLOCKS: Final = (RIGHT, JUMPS)
ALIVE_S: Final = (3.0, 10.0)
PATIENCE_S: Final = 120
"""Limit of a wait without any delivery; locks of dead ordered members last a minute."""
QUIET_S: Final = 12.0
LONGEST_MS: Final = 40_000
"""Longest delay of scheduled messages."""


def run(
    size: Size, modes: Sequence[str] = MODES, clock_kinds: Sequence[str] = CLOCKS
) -> list[Figure]:
    """Return the figures of `size.seconds` of chaos, divided between flush modes and clocks."""
    outcome = Outcome()
    kinds = [(mode, clock) for mode in modes for clock in clock_kinds]
    for flush_mode, clock in kinds:
        ledger, mode = Ledger(), f"{flush_mode}, clock {clock}"
        part = replace(size, seconds=size.seconds // len(kinds))
        with tempfile.TemporaryDirectory(prefix="chaos-") as made, watched(ledger):
            directory = Path(made)
            faked = FakedClock(directory / "clock", ledger) if clock == JUMPS else None
            asyncio.run(_chaos(directory, flush_mode, part, ledger, faked))
            if size.keep and ledger.failures:
                name = f"{flush_mode}-{clock}-{now_ms()}"
                size.say(f"{FAULT}: kept in {keep(Path(size.keep) / name, directory, ledger)}")
        for name, count in sorted(ledger.counts.items()):
            size.say(f"{FAULT}, {mode}: {name}: {count:,}")
        outcome.failures += [(figure, f"{mode}: {text}") for figure, text in ledger.failures]
        outcome.counts.update(ledger.counts)
    return [counted(FAULT, name, outcome, "messages acknowledged") for name in FIGURES]


async def _chaos(
    directory: Path, mode: str, size: Size, ledger: Ledger, clock: FakedClock | None
) -> None:
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: _on_loop_error(ledger, context)
    )
    broker = RealBroker(
        directory,
        environ=clock.environ if clock else None,
        settings=f"{SETTINGS}{clocks.SETTINGS if clock else ROLLS}flushDiskType={mode}\n",
    )
    try:
        namesrv = broker.serving.namesrv
        async with AdminClient(namesrv) as admin:
            for topic in (MIXED, ORDERS, REQUESTS):
                await admin.create_topic(topic, queues=6)
            for topic in (RECREATED, GONE):
                await admin.create_topic(topic, queues=QUEUES)
        dice = Random(size.seed)
        journals = directory / "journals"
        journals.mkdir()
        longest_ms = min(LONGEST_MS, size.seconds * 500)
        senders = Senders(ledger, namesrv, dice, journals, longest_ms)
        consumers = Consumers(ledger, namesrv, dice, directory / "offsets")
        recreated = recreated_topics(ledger, namesrv, dice, size.seconds)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(consumers.consuming())
            sending = list(await stack.enter_async_context(senders.sending()))
            for made_again in recreated:
                sending += await stack.enter_async_context(made_again.living())
            poppers = Poppers(ledger, namesrv, dice, directory / "poppers", size.seconds)
            await stack.enter_async_context(poppers.consuming())
            jumping = asyncio.create_task(clock.jump(dice)) if clock else None
            await _kill_again_and_again(broker, size, ledger, dice)
            ledger.is_over = True
            for ended in await asyncio.gather(*sending, return_exceptions=True):
                if isinstance(ended, BaseException):
                    ledger.fail(TRACED, f"a sender ended: {ended!r}")
            if clock and jumping:
                jumping.cancel()
                await asyncio.gather(jumping, return_exceptions=True)
                await until_came(
                    ledger, size, lambda group, key: not waits_for_clock(group, key, ledger)
                )
                judging.judge_stuck(ledger)
                clock.advance()
            await until_came(ledger, size)
            await asyncio.sleep(min(QUIET_S, size.seconds / 5))
        judging.judge(ledger)
        judging.judge_deliveries(ledger)
        await judging.judge_stored(ledger, namesrv, recreated)
        stopped = await asyncio.to_thread(broker.stop)
        judge_end(ledger, stopped.err, stopped.code, 0)
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
        await kill(broker, ledger)
        if ledger.counts["kills"] % 20 == 0:
            failures = len(ledger.failures)
            reported = f"{ledger.counts['kills']} kills, {len(ledger.acknowledged):,} messages"
            size.say(f"{FAULT}: {reported}, {failures} failures, {_missing_text(ledger)}")
            if failures:
                size.say(f"  first: {ledger.failures[0]}")


async def kill(broker: RealBroker, ledger: Ledger) -> None:
    """Kill the broker with -9, and start it again."""
    killed_at_s, killed_at_ms = time.perf_counter(), now_ms()
    ended = await asyncio.to_thread(broker.serving.stop, signal.SIGKILL)
    judge_end(ledger, ended.err, ended.code, -signal.SIGKILL)
    ledger.kills.append((killed_at_ms, now_ms()))
    await asyncio.to_thread(broker.start)
    away_ms = int((time.perf_counter() - killed_at_s) * 1_000)
    ledger.counts[AWAY] = max(ledger.counts[AWAY], away_ms)
    ledger.counts["kills"] += 1


async def until_came(
    ledger: Ledger, size: Size, is_wanted: Callable[[str, str], bool] = lambda *_: True
) -> None:
    """Wait until all wanted deliveries have happened, or none happens any more."""
    before, waited_s = 0, 0
    while left := ledger.count_missing(is_wanted):
        waited_s = 0 if left != before else waited_s + 1
        before = left
        if waited_s > PATIENCE_S:
            size.say(f"{FAULT}: still missing: {_missing_text(ledger)}")
            break
        await asyncio.sleep(1)


def _missing_text(ledger: Ledger) -> str:
    return ", ".join(f"{group} -{len(keys)}" for group, keys in ledger.missing.items())


def judge_end(ledger: Ledger, err: str, code: int, wanted: int) -> None:
    """Record a failure if the broker's exit code is not `wanted`, or if it has logged an error."""
    lines = [line for line in err.splitlines() if not _is_expected(line)]
    if lines or code != wanted:
        ledger.fail(TRACED, f"the broker ended with {code}: {'; '.join(lines)[:3000]}")


def _is_expected(line: str) -> bool:
    """Return whether a log line reports a delayed message that became due without its topic."""
    gone = any(f"topic '{topic}', which does not exist" in line for topic in (RECREATED, GONE))
    return gone and "passed_over" in line


def _on_loop_error(ledger: Ledger, context: Mapping[str, Any]) -> None:
    ledger.fail(TRACED, f"{context.get('message')}: {context.get('exception')!r}")


@contextmanager
def watched(ledger: Ledger) -> Iterator[None]:
    """Record errors logged by clients, except those that listeners raise on purpose."""

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
