"""Acknowledges popped messages in the background, in batches.

While one request to a broker is in progress, the messages that are done meanwhile are collected for
the next. A failed acknowledgement is repeated until the invisible time of its messages is over.
Then the broker delivers them again: they are counted, and the first failure is logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from kourou.client.consuming.popping.receipts import Receipts
from kourou.client.consuming.popping.renewals import Renewals
from kourou.client.instance import ClientInstance
from kourou.client.pop_result import PoppedMessage
from kourou.errors import ClosedError, KourouError

log = logging.getLogger(__name__)

_BATCH_MAX: Final = 1_024
"""Messages of one call; a broker gets as few requests as their size permits."""


@dataclass(slots=True, eq=False)
class _Broker:
    """The acknowledgements of one broker.

    Attributes:
        in_progress: number of messages of the call that runs.
        error: why the last call failed; None after a success.
    """

    name: str
    pending: list[PoppedMessage] = field(default_factory=list)
    in_progress: int = 0
    task: asyncio.Task[None] | None = None
    error: KourouError | None = None
    failures: int = 0


class PendingAcks:
    """The acknowledgements of one consumer that no broker has confirmed yet.

    Args:
        instance: owns the tasks that send them.
        receipts: sends them.
        renewals: renewals of the messages, which end first.

    Attributes:
        lost: messages that were done and could not be acknowledged in time.
    """

    def __init__(self, instance: ClientInstance, receipts: Receipts, renewals: Renewals) -> None:
        self._instance = instance
        self._receipts = receipts
        self._renewals = renewals
        self._brokers: dict[str, _Broker] = {}
        self.lost = 0

    def __len__(self) -> int:
        """Return the number of messages that are done and not acknowledged."""
        return sum(len(one.pending) + one.in_progress for one in self._brokers.values())

    def problems(self) -> list[str]:
        """Return descriptions of the brokers that accept no acknowledgements."""
        return [
            f"broker {name} does not accept acknowledgements of popped messages: {one.error}"
            for name, one in sorted(self._brokers.items())
            if one.error is not None
        ]

    def add(self, messages: Iterable[PoppedMessage]) -> None:
        """Acknowledge messages soon."""
        broker: _Broker | None = None
        for message in messages:
            name = message.checkpoint.broker_name
            if broker is None or broker.name != name:  # mostly, all are of one broker
                broker = self._broker(name)
            broker.pending.append(message)

    async def flush(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` until all are acknowledged."""
        tasks = [one.task for one in self._brokers.values() if one.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)

    def _broker(self, name: str) -> _Broker:
        """Return a broker whose task runs; it begins in the next turn of the event loop."""
        broker = self._brokers.get(name)
        if broker is None:
            broker = self._brokers[name] = _Broker(name)
        if broker.task is None or broker.task.done():
            self._start(broker)
        return broker

    def _start(self, broker: _Broker) -> None:
        broker.task = self._instance.tasks.start(
            lambda: self._run(broker), f"acknowledgements to {broker.name}"
        )

    async def _run(self, broker: _Broker) -> None:
        while broker.pending:
            batch = broker.pending[:_BATCH_MAX]
            del broker.pending[:_BATCH_MAX]
            broker.in_progress = len(batch)
            try:
                failed = await self._acknowledge(broker, batch)
            except ClosedError:
                return
            finally:
                broker.in_progress = 0
            if failed:
                broker.pending[:0] = failed
                await asyncio.sleep(self._instance.backoff.delay_s(broker.failures))

    async def _acknowledge(
        self, broker: _Broker, batch: list[PoppedMessage]
    ) -> list[PoppedMessage]:
        """Acknowledge messages; return those to try again."""
        if self._renewals:
            await asyncio.gather(*map(self._renewals.end, batch))
        error = await self._try(batch)
        if error is not None and len(batch) > 1 and not _is_temporary(error):
            # One bad entry must not keep the others of its batch.
            results = [(one, await self._try([one])) for one in batch]
        else:
            results = [(one, error) for one in batch]
        return self._sorted_out(broker, results)

    async def _try(self, batch: list[PoppedMessage]) -> KourouError | None:
        try:
            await self._receipts.ack_all(batch)
        except ClosedError:
            raise
        except KourouError as error:
            return error
        return None

    def _sorted_out(
        self, broker: _Broker, results: list[tuple[PoppedMessage, KourouError | None]]
    ) -> list[PoppedMessage]:
        """Return the messages to try again; count those for which it is too late."""
        error = next((error for _, error in results if error is not None), None)
        if error is None:
            broker.error, broker.failures = None, 0
            return []
        now_s = asyncio.get_running_loop().time()
        again, lost = [], 0
        for message, failure in results:
            if failure is None:
                continue
            if _is_temporary(failure) and message.visible_at_s > now_s:
                again.append(message)
            else:
                lost += 1
        level = logging.DEBUG if broker.error is not None else logging.WARNING
        log.log(
            level, "ack.failed broker=%s count=%d lost=%d reason=%s",
            broker.name, len(results), lost, error,
        )  # fmt: skip
        self.lost += lost
        broker.error = error
        broker.failures += 1
        return again


def _is_temporary(error: KourouError) -> bool:
    return error.retriable or error.refresh_route
