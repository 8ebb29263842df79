"""Requests to one peer that wait for its answer, found by their opaque.

The opaque is ours to choose and the peer copies it into the answer. Each side of a connection
counts for itself, so the same number may be under way in both directions.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from kourou.errors import ConnectionLostError, RequestTimeoutError, TooManyRequestsError
from kourou.protocol.codes import request_name
from kourou.protocol.command import RemotingCommand

log = logging.getLogger(__name__)

_OPAQUE_MASK: Final = 0x7FFF_FFFF


class PendingRequests:
    """The table of one connection. Every entry ends: by its answer, its time, or `fail_all`."""

    def __init__(self, requests_max: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._requests_max = requests_max
        self._opaque = -1
        self._waiting: dict[int, tuple[asyncio.Future[RemotingCommand], asyncio.TimerHandle]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def next_opaque(self) -> int:
        """Return a number that no waiting request has."""
        self._opaque = (self._opaque + 1) & _OPAQUE_MASK
        while self._opaque in self._waiting:
            self._opaque = (self._opaque + 1) & _OPAQUE_MASK
        return self._opaque

    def add(
        self, code: int, peer: str, timeout_s: float, ends_at_s: float
    ) -> asyncio.Future[RemotingCommand]:
        """Return what will hold the answer; `last_opaque` is the request's number from now on.

        Args:
            code: what was asked, for errors' texts.
            peer: of whom, for errors' texts.
            timeout_s: for how long, for errors' texts.
            ends_at_s: when to give up, on the loop's clock.

        Raises:
            TooManyRequestsError: the limit is reached.
        """
        if len(self._waiting) >= self._requests_max:
            raise TooManyRequestsError(
                f"{len(self._waiting)} requests to {peer} wait for an answer: "
                "wait for some of them, or raise requests_waiting_max"
            )
        opaque = self.next_opaque()
        answer: asyncio.Future[RemotingCommand] = self._loop.create_future()
        timer = self._loop.call_at(ends_at_s, self._expire, opaque, code, peer, timeout_s)
        self._waiting[opaque] = (answer, timer)
        return answer

    @property
    def last_opaque(self) -> int:
        """The number given last."""
        return self._opaque

    def discard(self, opaque: int) -> None:
        """Forget a request: its answer, if it comes, is dropped."""
        entry = self._waiting.pop(opaque, None)
        if entry is not None:
            entry[1].cancel()

    def settle(self, command: RemotingCommand) -> None:
        """Give an answer to who waits for it; drop it if nobody does."""
        entry = self._waiting.pop(command.opaque, None)
        if entry is None:
            log.debug("response.dropped opaque=%d code=%d", command.opaque, command.code)
            return
        answer, timer = entry
        timer.cancel()
        if not answer.done():
            answer.set_result(command)

    def fail_all(self, reason: str) -> None:
        """End all with `ConnectionLostError`."""
        waiting = list(self._waiting.values())
        self._waiting.clear()
        for answer, timer in waiting:
            timer.cancel()
            if not answer.done():
                answer.set_exception(ConnectionLostError(reason))

    def _expire(self, opaque: int, code: int, peer: str, timeout_s: float) -> None:
        answer, _ = self._waiting.pop(opaque)
        if not answer.done():
            text = f"{peer} did not answer {request_name(code)} within {timeout_s:g} s"
            answer.set_exception(RequestTimeoutError(text))
