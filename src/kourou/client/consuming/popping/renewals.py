"""Renews the invisible time of messages while the program works on them."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Awaitable, Callable
from typing import Final

from kourou.client.background import BackgroundTasks
from kourou.client.pop_result import PoppedMessage
from kourou.errors import KourouError, UsageError

log = logging.getLogger(__name__)

RENEWALS_MAX: Final = 10_000
"""Messages that are renewed at a time."""

_RETRY_MAX_S: Final = 1.0
_RETRY_MIN_S: Final = 0.05


class Renewals:
    """The renewals of one consumer.

    A message is renewed when half of its invisible time is over. If that fails, it is tried again
    until the message is visible; the first failure is logged. The renewal of a message ends with
    `end`, after its limit, and when the program drops the message.

    Args:
        change: changes the invisible time of a message to so many ms from now.
    """

    def __init__(self, change: Callable[[PoppedMessage, int], Awaitable[None]]) -> None:
        self._change = change
        self._all: dict[int, _Renewal] = {}  # by id of the message

    def __len__(self) -> int:
        return len(self._all)

    def start(
        self, tasks: BackgroundTasks, message: PoppedMessage, invisible_ms: int, limit_ms: int
    ) -> None:
        """Renew a message for `limit_ms`, each time by `invisible_ms`; no effect if it is renewed.

        Raises:
            UsageError: `RENEWALS_MAX` messages are renewed.
        """
        key = id(message)
        if key in self._all and self._all[key].is_of(message):
            return
        if len(self._all) >= RENEWALS_MAX:
            raise UsageError(
                f"{RENEWALS_MAX} messages are renewed already: settle some of them first, or "
                "receive with a longer invisible_ms"
            )
        ended = asyncio.Event()
        until_s = asyncio.get_running_loop().time() + limit_ms / 1000
        reference = weakref.ref(message, lambda _: ended.set())
        renewal = _Renewal(reference, message.msg_id, ended, self._change, invisible_ms, until_s)
        self._all[key] = renewal
        renewal.task = tasks.start(renewal.run, f"renew {message.msg_id}")
        renewal.task.add_done_callback(lambda _: self._remove(key, renewal))

    async def end(self, message: PoppedMessage) -> None:
        """End the renewal of a message; a request in progress is awaited, as it changes the handle.

        Must precede each request about the message.
        """
        renewal = self._all.get(id(message))
        if renewal is not None and renewal.task is not None and renewal.is_of(message):
            renewal.ended.set()
            await asyncio.wait({renewal.task})

    def _remove(self, key: int, renewal: _Renewal) -> None:
        if self._all.get(key) is renewal:  # the id of a dropped message may be in use again
            del self._all[key]


class _Renewal:
    """The renewal of one message, which it does not keep alive."""

    def __init__(
        self,
        message: weakref.ref[PoppedMessage],
        msg_id: str,
        ended: asyncio.Event,
        change: Callable[[PoppedMessage, int], Awaitable[None]],
        invisible_ms: int,
        until_s: float,
    ) -> None:
        self._message = message
        self._msg_id = msg_id
        self.ended = ended
        self._change = change
        self._invisible_ms = invisible_ms
        self._until_s = until_s
        self._is_failing = False
        self.task: asyncio.Task[None] | None = None

    def is_of(self, message: PoppedMessage) -> bool:
        """Return whether this is the renewal of that message."""
        return self._message() is message

    async def run(self) -> None:
        """Renew until the end, the limit, or the end of the invisible time."""
        while (delay_s := self._next_s()) is not None:
            try:
                async with asyncio.timeout(delay_s):
                    await self.ended.wait()
            except TimeoutError:
                await self._renew()
            else:
                return

    def _next_s(self) -> float | None:
        """Return the seconds to the next renewal; None after the last one."""
        message = self._message()
        if message is None or self.ended.is_set():
            return None
        now_s = asyncio.get_running_loop().time()
        left_s = message.visible_at_s - now_s
        if left_s <= 0:
            log.warning("renewal.late msg_id=%s reason=%s", self._msg_id, "it is visible again")
            return None
        if self._is_failing:
            return min(max(left_s / 4, _RETRY_MIN_S), _RETRY_MAX_S)
        delay_s = max(0.0, left_s - self._invisible_ms / 2000)
        if now_s + delay_s >= self._until_s:
            log.warning("renewal.limit msg_id=%s reason=%s", self._msg_id, "it took too long")
            return None
        return delay_s

    async def _renew(self) -> None:
        message = self._message()
        if message is None:
            return
        try:
            await self._change(message, self._invisible_ms)
        except KourouError as error:
            level = logging.DEBUG if self._is_failing else logging.WARNING
            self._is_failing = True
            log.log(level, "renewal.failed msg_id=%s reason=%s", self._msg_id, error)
        else:
            self._is_failing = False
