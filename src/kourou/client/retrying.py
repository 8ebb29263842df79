"""Trying a request again until its time is up.

What may be tried again, an error says itself: `retriable` (it passes without any change) and
`refresh_route` (the route is looked up before the next try).
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
"""How long before their time a loop's timers may fire."""


def check_timeout(timeout_ms: float | None) -> None:
    """Refuse a timeout that is no time: infinite, or no number.

    Raises:
        UsageError: it is one.
    """
    if timeout_ms is not None and not timeout_ms <= TIMEOUT_MS_MAX:
        raise UsageError(f"timeout_ms is {timeout_ms!r}: at most {TIMEOUT_MS_MAX} are allowed")


class Deadline:
    """The instant at which a call must have ended, on the loop's clock.

    Args:
        timeout_ms: how long it may take.
        began_s: since when, if that is not now.
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
        """Return the seconds left, but not more than `limit_ms`."""
        left = self.remaining_s()
        return left if limit_ms is None else min(left, limit_ms / 1000)


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait between tries: doubled each time up to a limit, half of it by chance."""

    min_ms: int
    max_ms: int
    random: random.Random

    def delay_s(self, failures: int) -> float:
        """Return the seconds to wait after so many failures, at least one."""
        # 2**20 times the shortest wait is beyond every limit, and small enough to compute.
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
    """Return what `attempt` returns, trying again after failures until the deadline.

    Args:
        deadline: no wait goes beyond it; `attempt` must heed it too.
        backoff: the waits.
        attempt: one try.
        on_failure: called with each error that will be tried again, before the wait.
        refused_max: tries for errors that only a new route can heal, or that `retry_codes` names
            although they do not pass by themselves; the others are unlimited.
        retry_codes: response codes that are tried again, and no others; None: as the errors say.
        failed: how a first try ended that was made already; None: none was.

    Raises:
        KourouError: the last failure, when no time is left for another try, or at once one that
            no further try would heal.
        RequestTimeoutError: the deadline had passed before the first try, or cut one off; then
            the text tells the failure before it too.
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
            if _says_less(error, last, deadline):
                raise RequestTimeoutError(f"{error}; the try before: {last}") from last
            last = error
            failures += 1
            refused += not error.retriable
            if not _may_pass(error, retry_codes) or refused >= refused_max:
                raise
            delay_s = backoff.delay_s(failures)
            if delay_s >= deadline.remaining_s():
                raise
            log.debug("try.failed failures=%d delay_s=%.3f reason=%s", failures, delay_s, error)
            on_failure(error)
        await asyncio.sleep(delay_s)
    if last is not None:
        raise last  # a busy loop woke late
    raise RequestTimeoutError(f"the timeout of {deadline.timeout_ms:g} ms leaves no time to try")


def _says_less(error: KourouError, last: KourouError | None, deadline: Deadline) -> bool:
    """Return whether the deadline cut a try off, after one that ended for a reason of its own."""
    return (
        isinstance(error, RequestTimeoutError)
        and last is not None
        and not isinstance(last, RequestTimeoutError)
        and deadline.remaining_s() < _TIMER_EARLY_S
    )


def _may_pass(error: KourouError, retry_codes: Collection[int] | None) -> bool:
    """Return whether another try may succeed."""
    if retry_codes is not None and isinstance(error, RemoteError):
        return error.code in retry_codes
    return error.retriable or error.refresh_route
