"""Retries of requests until a deadline.

The attributes of an error decide whether a request is retried: `retriable` (the failure may pass
without any change) and `refresh_route` (the route is looked up before the next try).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Final, TypeVar

from kourou.errors import KourouError, RemoteError, RequestTimeoutError, UsageError

log = logging.getLogger(__name__)
T = TypeVar("T")

TIMEOUT_MS_MAX: Final = 0x7FFF_FFFF
"""Longest timeout in ms that a caller may give for one call: 24 days."""

_TIMER_EARLY_S: Final = 0.001
"""Time by which timers of an event loop may fire early."""


def check_timeout(timeout_ms: float | None) -> None:
    """Raise if a timeout is infinite, NaN or too long.

    Raises:
        UsageError: the timeout is not at most `TIMEOUT_MS_MAX`.
    """
    if timeout_ms is not None and not timeout_ms <= TIMEOUT_MS_MAX:
        raise UsageError(f"timeout_ms is {timeout_ms!r}: at most {TIMEOUT_MS_MAX} are allowed")


class Deadline:
    """The time by which a call must end, on the event loop's clock.

    Args:
        timeout_ms: the duration from the beginning of the call.
        began_s: the loop's time at the beginning of the call; default: now.
    """

    def __init__(self, timeout_ms: float, began_s: float | None = None) -> None:
        self.timeout_ms = timeout_ms
        self._loop = asyncio.get_running_loop()
        began_s = self._loop.time() if began_s is None else began_s
        self._ends_at_s = began_s + timeout_ms / 1000

    def remaining_s(self) -> float:
        """Return the seconds left, at least 0."""
        left_s = self._ends_at_s - self._loop.time()
        return left_s if left_s > 0 else 0.0

    def within_s(self, limit_ms: float | None) -> float:
        """Return the seconds left, but at most `limit_ms`."""
        left = self.remaining_s()
        return left if limit_ms is None else min(left, limit_ms / 1000)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays between tries: doubled each time up to `max_ms`, with up to half of it as jitter."""

    min_ms: int
    max_ms: int
    random: random.Random

    def delay_s(self, failures: int) -> float:
        """Return the seconds to wait after the given number of failures, which is at least 1."""
        # 2**20 times the shortest delay exceeds every limit, and is small enough to compute.
        full_ms = min(self.max_ms, self.min_ms << min(failures - 1, 20))
        return full_ms * (1 + self.random.random()) / 2000


async def try_until(
    deadline: Deadline,
    backoff: Backoff,
    attempt: Callable[[], Awaitable[T]],
    on_failure: Callable[[KourouError], None],
    *,
    refused_max: int = 3,
    retry_codes: Collection[int] | None = None,
    failed: BaseException | None = None,
) -> T:
    """Return the result of `attempt`, retrying after failures until the deadline.

    Args:
        deadline: delays never exceed it; `attempt` must respect it too.
        backoff: the delays between tries.
        attempt: makes one try.
        on_failure: called with the error before the delay of each retry.
        refused_max: maximum tries that end in errors which are not `retriable`: they need a new
            route, or `retry_codes` contains their code. Tries with other errors are not limited.
        retry_codes: the response codes that are retried; None: the attributes of the errors decide.
        failed: the error of a first try that the caller has already made; None: there was none.

    Raises:
        KourouError: the last error, if no time is left for another try; or at once an error that
            no retry can resolve.
        RequestTimeoutError: the deadline passed before the first try, or during a later one; the
            text then contains the earlier error as well.
    """
    failures = refused = 0
    last: KourouError | None = None
    while failed is not None or deadline.remaining_s() > 0:
        try:
            if failed is not None:
                failure, failed = failed, None
                raise failure
            return await attempt()
        except KourouError as error:
            if _hides_cause(error, last, deadline):
                raise RequestTimeoutError(f"{error}; the try before: {last}") from last
            last = error
            failures += 1
            refused += not error.retriable
            if not _is_retriable(error, retry_codes) or refused >= refused_max:
                raise
            delay_s = backoff.delay_s(failures)
            if delay_s >= deadline.remaining_s():
                raise
            log.debug("try.failed failures=%d delay_s=%.3f reason=%s", failures, delay_s, error)
            on_failure(error)
        await asyncio.sleep(delay_s)
    if last is not None:
        raise last  # a busy event loop resumed this task too late
    raise RequestTimeoutError(f"the timeout of {deadline.timeout_ms:g} ms leaves no time for a try")


def _hides_cause(error: KourouError, last: KourouError | None, deadline: Deadline) -> bool:
    """Return whether `error` is only the deadline's timeout, while `last` has the real cause."""
    return (
        isinstance(error, RequestTimeoutError)
        and last is not None
        and not isinstance(last, RequestTimeoutError)
        and deadline.remaining_s() < _TIMER_EARLY_S
    )


def _is_retriable(error: KourouError, retry_codes: Collection[int] | None) -> bool:
    """Return whether another try may succeed."""
    if retry_codes is not None and isinstance(error, RemoteError):
        return error.code in retry_codes
    return error.retriable or error.refresh_route
