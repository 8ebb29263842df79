"""Pending requests share timers: none times out early, and ended ones are released soon."""

from __future__ import annotations

import asyncio
import gc
from weakref import ref

import pytest

from kourou.errors import ConnectionLostError, RequestTimeoutError, TooManyRequestsError
from kourou.protocol.command import RemotingCommand
from kourou.remoting.pending import PendingRequests
from kourou.testing.loop import run_virtual


def make(requests_max: int = 100_000) -> PendingRequests:
    return PendingRequests(requests_max, ("peer", 1))


def test_timeouts_within_10_ms_fire_together_and_none_early() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        pending = make()
        ends: dict[int, float] = {}
        for step in range(30):
            answer = pending.add(10, 1, 1 + step / 1000)
            answer.add_done_callback(lambda _, step=step: ends.setdefault(step, loop.time()))  # type: ignore[misc]
            answer.add_done_callback(asyncio.Future.exception)
        await asyncio.sleep(2)
        assert len(ends) == 30
        assert len(pending) == 0
        for step, ended_s in ends.items():
            assert -1e-9 <= ended_s - (1 + step / 1000) < 0.0101
        assert len(set(ends.values())) <= 5, "shared"

    run_virtual(main())


def test_a_past_deadline_fails_in_the_next_loop_iteration() -> None:
    async def main() -> None:
        answer = make().add(10, 0, asyncio.get_running_loop().time() - 5)
        with pytest.raises(RequestTimeoutError, match=r"peer:1 did not answer .* within 0 s"):
            await answer

    run_virtual(main())


def test_answered_requests_leave_a_bounded_number_of_ticks() -> None:
    async def main() -> None:
        pending = make()
        for step in range(20_000):
            answer = pending.add(10, 3_600, 3_600 + step)  # each in its own tick
            pending.complete(RemotingCommand(0, opaque=answer.opaque))
            assert answer.done()
        assert len(pending) == 0
        assert pending.timer_count <= 513
        requests = [pending.add(10, 3_600, 50_000 + step) for step in range(2_000)]
        assert 2_000 <= pending.timer_count <= 2_600
        pending.fail_all("over")
        assert all(isinstance(answer.exception(), ConnectionLostError) for answer in requests)
        assert pending.timer_count == 0

    run_virtual(main())


def test_a_discarded_request_does_not_time_out() -> None:
    async def main() -> None:
        pending = make()
        first, second = pending.add(10, 1, 1), pending.add(10, 1, 1)
        pending.discard(second.opaque)
        with pytest.raises(RequestTimeoutError):
            await first
        assert not second.done()
        assert len(pending) == 0

    run_virtual(main())


def test_the_limit_counts_pending_requests_only() -> None:
    async def main() -> None:
        pending = make(requests_max=2)
        first, second = pending.add(10, 1, 1), pending.add(10, 1, 1)
        with pytest.raises(TooManyRequestsError, match="2 requests to peer:1"):
            pending.add(10, 1, 1)
        pending.discard(first.opaque)
        third = pending.add(10, 1, 1)
        pending.fail_all("over")
        assert second.exception() is not None is not third.exception()

    run_virtual(main())


@pytest.mark.parametrize("is_expired", [True, False])
def test_failed_requests_are_freed_without_garbage_collection(*, is_expired: bool) -> None:
    async def main() -> None:
        pending = make()
        answer = pending.add(10, 1, 1)
        if is_expired:
            await asyncio.wait([answer])
        else:
            pending.fail_all("over")
        assert answer.exception() is not None
        gone = ref(answer)
        del answer
        assert gone() is None

    gc.disable()
    try:
        run_virtual(main())
    finally:
        gc.enable()
