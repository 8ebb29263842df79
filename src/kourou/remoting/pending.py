"""Pending requests to one peer, by opaque.

The requester chooses the opaque and the peer copies it into the response. Each side of a connection
counts separately, so the same number may be in use in both directions.

A timer for each request would cost more than everything else here, and hardly any timer fires. So
requests whose deadlines fall within the same 10 ms share one timer. A timeout is never early and at
most 10 ms late.
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

_TICKS_MAX: Final = 512
"""Number of ticks above which empty ticks are removed before they expire."""


class PendingRequest(asyncio.Future[T]):
    """A pending request; `on_answer` or `on_failure` is called once.

    It is a future itself, so that a request needs one object instead of two.

    Attributes:
        code: the request code, for error texts.
        timeout_s: the request's timeout, for error texts.
        opaque: the request's number; set by `PendingRequests.put`, as are `table` and `tick`.
        table: the table that it is in.
        tick: the requests with the same deadline tick.
    """

    __slots__ = ("code", "opaque", "table", "tick", "timeout_s")

    code: int
    timeout_s: float
    opaque: int
    table: PendingRequests
    tick: dict[int, PendingRequest[Any]]

    def abandon(self) -> None:
        """Stop waiting; a late response is dropped."""
        self.table.discard(self.opaque)

    @abstractmethod
    def on_answer(self, answer: RemotingCommand) -> None:
        """Called with the response, whatever its code."""

    @abstractmethod
    def on_failure(self, error: TransportError) -> None:
        """Called when there will be no response."""


class ResponseFuture(PendingRequest[RemotingCommand]):
    """A future of the response."""

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


class _Tick(dict[int, PendingRequest[Any]]):
    """The requests whose deadlines fall into one hundredth of a second, and their timer."""

    __slots__ = ("timer",)

    timer: asyncio.TimerHandle


class PendingRequests:
    """The pending requests of one connection.

    Every entry ends: by its response, its timeout, `discard` or `fail_all`.

    Args:
        requests_max: largest number of pending requests.
        peer: the peer's address, for error texts.

    Attributes:
        peer: as above; updated when the connection is made.
        by_opaque: the pending requests. A fast path that recognizes a response removes its request
            from here and from the request's `tick`, as `complete` does.
    """

    def __init__(self, requests_max: int, peer: Address) -> None:
        self._loop = asyncio.get_running_loop()
        self._requests_max = requests_max
        self.peer = peer
        self._opaque = -1
        self.by_opaque: dict[int, PendingRequest[Any]] = {}
        self._ticks: dict[int, _Tick] = {}
        self._ticks_max = _TICKS_MAX

    def __len__(self) -> int:
        return len(self.by_opaque)

    def next_opaque(self) -> int:
        """Return a number that no pending request uses."""
        self._opaque = (self._opaque + 1) & _OPAQUE_MASK
        while self._opaque in self.by_opaque:
            self._opaque = (self._opaque + 1) & _OPAQUE_MASK
        return self._opaque

    @property
    def timer_count(self) -> int:
        """Number of timers that are set: bounded, not one for each request."""
        return len(self._ticks)

    def add(self, code: int, timeout_s: float, ends_at_s: float) -> ResponseFuture:
        """Return a future of the response; its `opaque` is the request's number.

        Args:
            code: the request code, for error texts.
            timeout_s: the timeout, for error texts.
            ends_at_s: the deadline on the loop's clock.

        Raises:
            TooManyRequestsError: the limit is reached.
        """
        answer = ResponseFuture(code, timeout_s, self._loop)
        if not self.put(answer, ends_at_s):
            raise TooManyRequestsError(
                f"{len(self.by_opaque)} requests to {format_address(self.peer)} are pending: "
                "wait for some of them, or raise requests_waiting_max"
            )
        return answer

    def put(self, pending: PendingRequest[Any], ends_at_s: float) -> bool:
        """Add `pending` with a new `opaque`; False, and no change, at the limit."""
        waiting = self.by_opaque
        if len(waiting) >= self._requests_max:
            return False
        # Same as `next_opaque`, inlined to save a call for each request.
        opaque = (self._opaque + 1) & _OPAQUE_MASK
        if opaque in waiting:
            opaque = self.next_opaque()
        number = math.ceil(ends_at_s * _TICKS_PER_S)
        tick = self._ticks.get(number) or self._tick(number)
        self._opaque = pending.opaque = opaque
        tick[opaque] = waiting[opaque] = pending
        pending.tick = tick
        pending.table = self
        return True

    def discard(self, opaque: int) -> None:
        """Remove a request; a late response is dropped."""
        pending = self.by_opaque.pop(opaque, None)
        if pending is not None:
            pending.tick.pop(opaque, None)

    def complete(self, command: RemotingCommand) -> None:
        """Complete the pending request that `command` answers; drop `command` if there is none."""
        opaque = command.opaque
        pending = self.by_opaque.pop(opaque, None)
        if pending is None:
            log.debug("response.dropped opaque=%d code=%d", opaque, command.code)
            return
        pending.tick.pop(opaque, None)
        pending.on_answer(command)

    def fail_all(self, reason: str) -> None:
        """Fail all requests with `ConnectionLostError`: the connection has ended."""
        text = f"connection to {format_address(self.peer)} ended: {reason}"
        waiting = list(self.by_opaque.values())
        self.by_opaque.clear()
        for tick in self._ticks.values():
            tick.timer.cancel()
            tick.clear()  # breaks the reference cycle between tick and requests
        self._ticks.clear()
        for pending in waiting:
            pending.on_failure(ConnectionLostError(text))

    def _tick(self, number: int) -> _Tick:
        """Return the tick with that number; create it if there is none."""
        tick = self._ticks.get(number)
        if tick is not None:
            return tick  # `put` took it for missing because an empty tick is false
        if len(self._ticks) >= self._ticks_max:
            self._drop_empty_ticks()
        tick = self._ticks[number] = _Tick()
        tick.timer = self._loop.call_at(number / _TICKS_PER_S, self._expire, number)
        return tick

    def _drop_empty_ticks(self) -> None:
        """Remove empty ticks, which long timeouts with quick responses leave behind."""
        for number in [number for number, tick in self._ticks.items() if not tick]:
            self._ticks.pop(number).timer.cancel()
        self._ticks_max = max(_TICKS_MAX, 2 * len(self._ticks))

    def _expire(self, number: int) -> None:
        peer, tick = format_address(self.peer), self._ticks.pop(number)
        expired = list(tick.items())
        tick.clear()  # breaks the reference cycle between tick and requests
        for opaque, pending in expired:
            # The callback of an earlier request may have ended this one already.
            if self.by_opaque.pop(opaque, None) is not None:
                name = request_name(pending.code)
                text = f"{peer} did not answer {name} within {pending.timeout_s:.3g} s"
                pending.on_failure(RequestTimeoutError(text))
