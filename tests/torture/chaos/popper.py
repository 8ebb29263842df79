"""A process that consumes by pop until it is killed, and reports each event on its stdout.

python -m tests.torture.chaos.popper NAMESRV GROUP NAME

An event is reported before its request is sent, and after its answer has arrived.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from collections.abc import Callable
from random import Random
from typing import Final

from kourou import ConsumeFromWhere, SimpleConsumer, SimpleConsumerConfig
from kourou.client.pop_result import PoppedMessage
from kourou.errors import KourouError
from tests.torture.chaos.ledger import (
    ORDERED_POPPERS,
    POP_FILTERS,
    POP_TOPICS,
    body_of,
    fate,
    key_of,
    now_ms,
)
from tests.torture.chaos.pop_ledger import Answered, Begun, PopEvent, Popped, encode_event

INVISIBLE_MS: Final = (3_000, 6_000)
CHANGED_MS: Final = (1_000, 3_000)
WAIT_MS: Final = 2_000
WORK_S_MAX: Final = 0.5
WORKING_MAX: Final = 8
"""Limit of batches in work."""
ACKS_FROM: Final = 3
"""A message is acknowledged at its third redelivery, if not earlier."""
FORGET, GIVE_BACK, CHANGE, CHANGE_AND_FORGET, BATCH, SINGLE = range(6)
FATES: Final = 20
"""One of so many deliveries is forgotten, one is given back, one changed, and so on."""
ORDERED_FATES: Final = 400
"""The same, in order: each message that is not acknowledged blocks its queue for seconds."""


def plan(key: str, reconsume_times: int, fates: int) -> int:
    """Return the fate of a delivery, one of `fates`, determined by key and retry count."""
    number = fate(key, f"pop {reconsume_times}") % fates
    if number > CHANGE_AND_FORGET or reconsume_times >= ACKS_FROM:
        return BATCH if number % 2 else SINGLE
    return number


class Popper:
    """One member of a group."""

    def __init__(
        self,
        consumer: SimpleConsumer,
        dice: Random,
        fates: int,
        report: Callable[[PopEvent], None],
        now_ms: Callable[[], int],
    ) -> None:
        """Consume by `consumer`.

        Args:
            consumer: is started.
            dice: for the sizes of pops, their invisible times, and the duration of work.
            fates: number of fates of a delivery; see `plan`.
            report: called with each event.
            now_ms: the time of events.
        """
        self._consumer = consumer
        self._dice = dice
        self._fates = fates
        self._report = report
        self._now_ms = now_ms
        self._numbers = itertools.count()
        self._working = asyncio.Semaphore(WORKING_MAX)
        self._works: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Consume until killed."""
        while True:
            await self._working.acquire()
            asked_ms = self._now_ms()
            try:
                messages = await self._consumer.receive(
                    self._dice.randint(1, 32),
                    invisible_ms=self._dice.randint(*INVISIBLE_MS),
                    wait_ms=WAIT_MS,
                )
            except KourouError:
                messages = []
                await asyncio.sleep(0.2)
            numbered = {next(self._numbers): message for message in messages}
            for number, message in numbered.items():
                self._report_popped(number, message, asked_ms)
            work = asyncio.create_task(self._work(numbered))
            self._works.add(work)
            work.add_done_callback(self._worked)

    async def abandon(self) -> None:
        """End all work at once, like a killed process."""
        works = list(self._works)
        for work in works:
            work.remove_done_callback(self._worked)
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)

    def _worked(self, work: asyncio.Task[None]) -> None:
        self._works.discard(work)
        self._working.release()
        if error := work.exception():
            sys.stderr.write(f"{error!r}\n")
            os._exit(1)

    def _report_popped(self, number: int, message: PoppedMessage, asked_ms: int) -> None:
        key, receipt = key_of(message.body), message.receipt
        if message.body != body_of(key) or message.keys != [key]:
            raise AssertionError(f"{message.keys} has another body: {message.body[:50]!r}")
        event = Popped(
            number=number,
            key=key,
            kind=receipt.kind,
            queue_id=receipt.queue_id,
            offset=message.queue_offset if receipt.offset is None else receipt.offset,
            reconsume_times=message.reconsume_times,
            asked_ms=asked_ms,
            came_ms=self._now_ms(),
            popped_ms=receipt.pop_time_ms,
            visible_at_ms=receipt.pop_time_ms + receipt.invisible_ms,
        )
        self._report(event)

    async def _work(self, messages: dict[int, PoppedMessage]) -> None:
        """Settle the messages of one receive, each as its key decides."""
        await asyncio.sleep(self._dice.uniform(0, WORK_S_MAX))
        batch: dict[int, PoppedMessage] = {}
        rest = []
        for number, message in messages.items():
            planned = plan(key_of(message.body), message.reconsume_times, self._fates)
            if planned == BATCH:
                batch[number] = message
            elif planned == SINGLE:
                rest.append(self._ack({number: message}))
            elif planned == GIVE_BACK:
                rest.append(self._change(number, message, 0, then_ack=False))
            elif planned in (CHANGE, CHANGE_AND_FORGET):
                changed_ms = self._dice.randint(*CHANGED_MS)
                then_ack = planned == CHANGE
                rest.append(self._change(number, message, changed_ms, then_ack=then_ack))
        if batch:
            rest.append(self._ack(batch))
        await asyncio.gather(*rest)

    async def _ack(self, messages: dict[int, PoppedMessage]) -> None:
        """Acknowledge messages, again and again until they are visible to others."""
        for number in messages:
            self._report(Begun(number, True, self._now_ms()))
        ends_at_s = min(message.visible_at_s for message in messages.values())
        loop = asyncio.get_running_loop()
        while True:
            try:
                if len(messages) == 1:
                    [message] = messages.values()
                    await self._consumer.ack(message)
                else:
                    await self._consumer.ack_all(messages.values())
            except KourouError:
                if loop.time() > ends_at_s:
                    return
                await asyncio.sleep(0.1)
                continue
            for number in messages:
                self._report(Answered(number, self._now_ms(), 0))
            return

    async def _change(
        self, number: int, message: PoppedMessage, invisible_ms: int, *, then_ack: bool
    ) -> None:
        self._report(Begun(number, False, self._now_ms()))
        try:
            await self._consumer.change_invisible(message, invisible_ms)
        except KourouError:
            pass
        else:
            receipt = message.receipt
            visible_at_ms = receipt.pop_time_ms + receipt.invisible_ms
            self._report(Answered(number, self._now_ms(), visible_at_ms))
        if then_ack:
            await asyncio.sleep(self._dice.uniform(0, invisible_ms / 2_000))
            await self._ack({number: message})


def report(event: PopEvent) -> None:
    """Write one line, which a kill cannot divide."""
    os.write(1, encode_event(event) + b"\n")


async def main(namesrv: str, group: str, name: str) -> None:
    is_ordered = group == ORDERED_POPPERS
    config = SimpleConsumerConfig(
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        instance_name=name,
        ordered=is_ordered,
        max_reconsume_times=None,
        heartbeat_interval_ms=5_000,
    )
    async with SimpleConsumer(group, namesrv, config=config) as consumer:
        consumer.subscribe(POP_TOPICS[group], sql=POP_FILTERS.get(group))
        fates = ORDERED_FATES if is_ordered else FATES
        await Popper(consumer, Random(name), fates, report, now_ms).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
