"""Requests to one peer that wait for its answer, found by their opaque.

The opaque is ours to choose and the peer copies it into the answer. Each side of a connection
counts for itself, so the same number may be under way in both directions.

A timer for each request would cost more than all else here, and nearly none ever fires. So those
whose time ends within the same 10 ms share one: never early, at most so much late.
"""

from __future__ import annotations

import asyncio
import logging
import math
from abc import abstractmethod
from typing import Any, Final, TypeVar

from kourou.errors import (
    ConnectionLostError,
    RequestTimeoutError,
    TooManyRequestsError,
    TransportError,
)
from kourou.protocol.codes import request_name
from kourou.protocol.command import RemotingCommand
from kourou.remoting.network import Address, format_address

log = logging.getLogger(__name__)
T = TypeVar("T")

_OPAQUE_MASK: Final = 0x7FFF_FFFF

_TICKS_PER_S: Final = 100

_TICKS_KEPT: Final = 512
"""Ticks above which those that nobody waits for any more are let go before their time."""


class Waiter(asyncio.Future[T]):
    """Who waits for the answer to one request; told once, how it ended.

    A future itself, as it is one for whoever waits: one object a request in place of two.

    Attributes:
        code: what was asked, for errors' texts.
        timeout_s: for how long, for errors' texts.
        opaque: the request's number; set when it is put into a table, and so are the others.
    """

    __slots__ = ("code", "opaque", "table", "tick", "timeout_s")

    code: int
    timeout_s: float
    opaque: int
    table: PendingRequests
    tick: dict[int, Waiter[Any]]

    def leave(self) -> None:
        """Wait no more: the answer, if it comes, is dropped."""
        self.table.discard(self.opaque)

    @abstractmethod
    def on_answer(self, answer: RemotingCommand) -> None:
        """Called with the answer, whatever its code."""

    @abstractmethod
    def on_failure(self, error: TransportError) -> None:
        """Called when there will be none."""


class Answer(Waiter[RemotingCommand]):
    """A future of the answer."""

    __slots__ = ()

    def __init__(self, code: int, timeout_s: float, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self.code = code
        self.timeout_s = timeout_s

    def on_answer(self, answer: RemotingCommand) -> None:
        if not self.done():
            self.set_result(answer)

    def on_failure(self, error: TransportError) -> None:
        if not self.done():
            self.set_exception(error)


class _Tick(dict[int, Waiter[Any]]):
    """The requests whose time ends in one hundredth of a second, and the timer of that."""

    __slots__ = ("timer",)

    timer: asyncio.TimerHandle


class PendingRequests:
    """The table of one connection. Every entry ends: by its answer, its time, or `fail_all`.

    Args:
        requests_max: how many may wait.
        peer: who is asked, for errors' texts.

    Attributes:
        peer: as above; to be set once it is known better.
        waiting: who waits, by opaque. A fast path that knows an answer at sight takes its waiter
            out of here and out of the waiter's `tick`, as `settle` does.
    """

    def __init__(self, requests_max: int, peer: Address) -> None:
        self._loop = asyncio.get_running_loop()
        self._requests_max = requests_max
        self.peer = peer
        self._opaque = -1
        self.waiting: dict[int, Waiter[Any]] = {}
        self._ticks: dict[int, _Tick] = {}
        self._ticks_max = _TICKS_KEPT

    def __len__(self) -> int:
        return len(self.waiting)

    def next_opaque(self) -> int:
        """Return a number that no waiting request has."""
        self._opaque = (self._opaque + 1) & _OPAQUE_MASK
        while self._opaque in self.waiting:
            self._opaque = (self._opaque + 1) & _OPAQUE_MASK
        return self._opaque

    def add(self, code: int, timeout_s: float, ends_at_s: float) -> Answer:
        """Return a future of the answer; its `opaque` is the request's number.

        Args:
            code: what is asked, for errors' texts.
            timeout_s: for how long, for errors' texts.
            ends_at_s: when to give up, on the loop's clock.

        Raises:
            TooManyRequestsError: the limit is reached.
        """
        answer = Answer(code, timeout_s, self._loop)
        if not self.put(answer, ends_at_s):
            raise TooManyRequestsError(
                f"{len(self.waiting)} requests to {format_address(self.peer)} wait for an answer: "
                "wait for some of them, or raise requests_waiting_max"
            )
        return answer

    def put(self, waiter: Waiter[Any], ends_at_s: float) -> bool:
        """Let `waiter` wait, with a new `opaque`; False, and nothing is done, at the limit."""
        waiting = self.waiting
        if len(waiting) >= self._requests_max:
            return False
        # As `next_opaque` does: a call less for each request.
        opaque = (self._opaque + 1) & _OPAQUE_MASK
        if opaque in waiting:
            opaque = self.next_opaque()
        number = math.ceil(ends_at_s * _TICKS_PER_S)
        tick = self._ticks.get(number) or self._tick(number)
        self._opaque = waiter.opaque = opaque
        tick[opaque] = waiting[opaque] = waiter
        waiter.tick = tick
        waiter.table = self
        return True

    def discard(self, opaque: int) -> None:
        """Forget a request: its answer, if it comes, is dropped."""
        waiter = self.waiting.pop(opaque, None)
        if waiter is not None:
            waiter.tick.pop(opaque, None)

    def settle(self, command: RemotingCommand) -> None:
        """Give an answer to who waits for it; drop it if nobody does."""
        opaque = command.opaque
        waiter = self.waiting.pop(opaque, None)
        if waiter is None:
            log.debug("response.dropped opaque=%d code=%d", opaque, command.code)
            return
        waiter.tick.pop(opaque, None)
        waiter.on_answer(command)

    def fail_all(self, reason: str) -> None:
        """End all with `ConnectionLostError`: the connection to the peer ended."""
        text = f"connection to {format_address(self.peer)} ended: {reason}"
        waiting = list(self.waiting.values())
        self.waiting.clear()
        for tick in self._ticks.values():
            tick.timer.cancel()
            tick.clear()  # they refer to it
        self._ticks.clear()
        for waiter in waiting:
            waiter.on_failure(ConnectionLostError(text))

    def _tick(self, number: int) -> _Tick:
        """Return the tick of that number, made now if there is none."""
        tick = self._ticks.get(number)
        if tick is not None:
            return tick  # empty, and therefore false
        if len(self._ticks) >= self._ticks_max:
            self._drop_empty_ticks()
        tick = self._ticks[number] = _Tick()
        tick.timer = self._loop.call_at(number / _TICKS_PER_S, self._expire, number)
        return tick

    def _drop_empty_ticks(self) -> None:
        """Bound what is kept for requests with long times that are answered soon."""
        for number in [number for number, tick in self._ticks.items() if not tick]:
            self._ticks.pop(number).timer.cancel()
        self._ticks_max = max(_TICKS_KEPT, 2 * len(self._ticks))

    def _expire(self, number: int) -> None:
        peer, tick = format_address(self.peer), self._ticks.pop(number)
        waiters = list(tick.items())
        tick.clear()  # they refer to it
        for opaque, waiter in waiters:
            if self.waiting.pop(opaque, None) is not None:  # none before ended it as well
                name = request_name(waiter.code)
                text = f"{peer} did not answer {name} within {waiter.timeout_s:.3g} s"
                waiter.on_failure(RequestTimeoutError(text))
