"""Retries follow the attributes of errors and end at the deadline."""

from __future__ import annotations

import asyncio
import random
from typing import cast

import pytest

from kourou.client.retrying import Backoff, Deadline, try_until
from kourou.errors import (
    KourouError,
    MessageIllegalError,
    NoPermissionError,
    RequestTimeoutError,
    SystemBusyError,
)
from kourou.testing.loop import VirtualTimeLoop, run_virtual

BACKOFF = Backoff(min_ms=50, max_ms=500, random=random.Random(1))


class Script:
    """Fails with the given errors in order, then repeatedly with the last one."""

    def __init__(self, *errors: KourouError) -> None:
        self.errors = list(errors)
        self.failures: list[KourouError] = []
        self.tries = 0

    async def __call__(self) -> str:
        self.tries += 1
        if self.errors:
            raise self.errors[0] if len(self.errors) == 1 else self.errors.pop(0)
        return "done"


def busy() -> SystemBusyError:
    return SystemBusyError(2, "busy")


def test_delays_double_up_to_the_limit_with_at_most_half_jitter() -> None:
    for failures, full_ms in ((1, 50), (2, 100), (4, 400), (5, 500), (10_000, 500)):
        for _ in range(20):
            assert full_ms / 2000 <= BACKOFF.delay_s(failures) <= full_ms / 1000


def test_transient_error_is_retried_until_the_deadline_and_raised_unchanged() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        script = Script(busy())
        with pytest.raises(SystemBusyError):
            await try_until(Deadline(3000), BACKOFF, script, script.failures.append)
        assert 2.4 <= loop.time() <= 3.0
        assert script.tries > 5
        assert len(script.failures) == script.tries - 1

    run_virtual(main())


def test_error_that_needs_a_new_route_is_retried_a_limited_number_of_times() -> None:
    async def main() -> None:
        script = Script(NoPermissionError(16, "no"))
        with pytest.raises(NoPermissionError):
            await try_until(Deadline(3000), BACKOFF, script, script.failures.append, refused_max=3)
        assert script.tries == 3

    run_virtual(main())


def test_permanent_error_is_raised_at_once() -> None:
    async def main() -> None:
        script = Script(MessageIllegalError(13, "too large"))
        with pytest.raises(MessageIllegalError):
            await try_until(Deadline(3000), BACKOFF, script, script.failures.append)
        assert script.tries == 1

    run_virtual(main())


def test_no_try_is_made_after_the_deadline() -> None:
    async def main() -> None:
        script = Script()
        with pytest.raises(RequestTimeoutError, match="timeout of 0 ms"):
            await try_until(Deadline(0), BACKOFF, script, script.failures.append)
        assert script.tries == 0

    run_virtual(main())


def test_late_wakeup_raises_the_last_error() -> None:
    async def main() -> None:
        def be_busy(_: KourouError) -> None:
            cast(VirtualTimeLoop, asyncio.get_running_loop()).advance(10)

        script = Script(busy())
        with pytest.raises(SystemBusyError):
            await try_until(Deadline(3000), BACKOFF, script, be_busy)
        assert script.tries == 1

    run_virtual(main())


def test_timeout_error_contains_the_earlier_error() -> None:
    async def main() -> None:
        deadline = Deadline(400)
        tries = 0

        async def attempt() -> str:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise busy()
            await asyncio.sleep(deadline.remaining_s())
            raise RequestTimeoutError("no answer within 0.0011 s")

        with pytest.raises(RequestTimeoutError, match=r"within 0\.0011 s; the try before: .*busy"):
            await try_until(deadline, BACKOFF, attempt, lambda _: None)
        assert tries == 2

    run_virtual(main())


def test_retry_codes_override_the_attributes_of_errors() -> None:
    async def main() -> None:
        healed = Script(MessageIllegalError(13, "no"), busy())
        healed.errors.append(busy())
        with pytest.raises(SystemBusyError):
            await try_until(
                Deadline(1_000), BACKOFF, healed, healed.failures.append, retry_codes={13}
            )
        assert healed.tries == 2, "13 is in the list, 2 is not"

        refused = Script(MessageIllegalError(13, "no"))
        with pytest.raises(MessageIllegalError):
            await try_until(
                Deadline(60_000), BACKOFF, refused, refused.failures.append, retry_codes={13}
            )
        assert refused.tries == 3, "errors that are not retriable have a limited number of tries"

        lost = Script(RequestTimeoutError("silent"))
        with pytest.raises(RequestTimeoutError):
            await try_until(Deadline(1_000), BACKOFF, lost, lost.failures.append, retry_codes=())
        assert lost.tries > 2, "retry codes do not apply to TransportError"

    run_virtual(main())
