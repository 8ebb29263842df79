"""Listeners that raise, hang or return nonsense are reported, lose nothing, and affect no other."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.errors import UsageError
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import MessageExt
from kourou.testing.clock import LoopClock
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, Recording, recording

BODIES = [b"%d" % number for number in range(20)]
Listener = Callable[[MessageExt], Awaitable[object] | object]


def consumer_of(w: Recording, listener: Listener, **options: Any) -> PushConsumer:
    """Return a consumer with this listener, unwrapped."""
    options = {"consume_from_where": ConsumeFromWhere.FIRST_OFFSET, **options}
    consumer = w.cluster.push_consumer("consumers", PushConsumerConfig(**options))
    consumer.subscribe(TOPIC)
    consumer.listen(listener)
    return consumer


def entries(caplog: pytest.LogCaptureFixture, event: str) -> list[logging.LogRecord]:
    return [one for one in caplog.records if one.getMessage().split(" ", 1)[0] == event]


@pytest.mark.parametrize("value", [False, 0, "RECONSUME_LATER", object(), [1], {"a": 1}])
@pytest.mark.parametrize("is_coroutine", [False, True])
@pytest.mark.parametrize("has_hook", [False, True])
def test_any_return_value_acknowledges_and_is_logged_once(
    value: object, is_coroutine: bool, has_hook: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        got: list[bytes] = []

        def plain(message: MessageExt) -> object:
            got.append(message.body)
            return value

        async def coroutine(message: MessageExt) -> object:
            return plain(message)

        class Hook:
            def before(self, context: object) -> None: ...

            def after(self, context: object) -> None: ...

        async with recording() as w:
            await w.send(*BODIES)
            consumer = consumer_of(w, coroutine if is_coroutine else plain)
            if has_hook:
                consumer.add_hook(Hook())
            async with consumer:
                await w.until(lambda: len(got) == len(BODIES))
                await asyncio.sleep(60)
            assert Counter(got) == Counter(BODIES)
            assert await w.committed() == len(BODIES)

    run_virtual(main())
    [record] = entries(caplog, "listener.returned")
    assert f"type={type(value).__name__} " in record.getMessage()
    assert "raise to have it redelivered" in record.getMessage()


@pytest.mark.parametrize("value", [None, True])
def test_returning_none_or_true_logs_nothing(
    value: object, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        got: list[bytes] = []

        def plain(message: MessageExt) -> object:
            got.append(message.body)
            return value

        async with recording() as w:
            await w.send(*BODIES)
            async with consumer_of(w, plain):
                await w.until(lambda: len(got) == len(BODIES))

    run_virtual(main())
    assert entries(caplog, "listener.returned") == []


def test_a_generator_function_is_refused_at_registration() -> None:
    def generator(message: MessageExt) -> Iterator[MessageExt]:
        yield message

    async def async_generator(message: MessageExt) -> AsyncIterator[MessageExt]:
        yield message

    class Callable_:  # noqa: N801  # an object with a call that is one
        def __call__(self, message: MessageExt) -> Iterator[MessageExt]:
            yield message

    async def main() -> None:
        async with recording() as w:
            for listener in (generator, async_generator, Callable_()):
                with pytest.raises(UsageError, match="is a generator function"):
                    consumer_of(w, listener)

    run_virtual(main())


def test_a_returned_generator_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        calls: list[int] = []

        def listen(message: MessageExt) -> object:
            calls.append(message.reconsume_times)
            return (each for each in (message,)) if len(calls) == 1 else None

        async with recording() as w:
            await w.send(b"x")
            async with consumer_of(w, listen):
                await w.until(lambda: calls == [0, 1])
            assert await w.committed() == 1

    run_virtual(main())
    [failed] = entries(caplog, "listener.failed")
    assert failed.exc_info is not None
    assert "returned a generator, which has not run" in str(failed.exc_info[1])


def test_a_listener_that_raises_affects_no_other_message(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        def fail_on_seven(message: MessageExt) -> None:
            if message.body == b"7" and message.reconsume_times < 2:
                raise BaseExceptionGroup("odd", [ValueError("seven"), KeyboardInterruptLikeError()])

        async with recording(queues=1) as w:
            await w.send(*BODIES)
            async with w.consumer(fail_on_seven):
                await w.until_received(*BODIES, timeout_s=1)
                await w.until_received(b"7", b"7", b"7", timeout_s=60)
            assert Counter(w.received) == Counter([*BODIES, b"7", b"7"])
            assert await w.committed() == len(BODIES)

    run_virtual(main())
    failed = entries(caplog, "listener.failed")
    assert len(failed) == 2
    assert all(one.exc_info for one in failed), "with its traceback"


class KeyboardInterruptLikeError(BaseException):
    """Not an Exception, and not an exception that ends a program either."""


def test_a_hanging_call_delays_no_other_and_its_message_is_redelivered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async def hang_on_seven(message: MessageExt) -> None:
            if message.body == b"7" and not message.reconsume_times:
                await asyncio.Event().wait()

        async with recording(queues=1) as w:
            await w.send(*BODIES)
            async with w.consumer(
                hang_on_seven, consume_timeout_ms=60_000, shutdown_timeout_ms=0
            ) as consumer:
                await w.until_received(*BODIES, timeout_s=1)
                await asyncio.sleep(6)
                assert await w.committed() == 7
                await w.send(b"more")
                await w.until_received(b"more", timeout_s=1)
                await w.until_received(b"7", b"7", timeout_s=140)
                await asyncio.sleep(6)
                assert await w.committed() == len(BODIES) + 1
                assert consumer.health().is_open
            assert Counter(w.received) == Counter([*BODIES, b"more", b"7"])

    run_virtual(main())
    [record] = entries(caplog, "message.overdue")
    assert f"topic={TOPIC}" in record.getMessage()


@pytest.mark.parametrize("step_ms", [-3_600_000, 3_600_000])
def test_setting_the_clock_makes_no_message_overdue(step_ms: int) -> None:
    async def main() -> None:
        async def work(message: MessageExt) -> None:
            await asyncio.sleep(50)

        async with recording(queues=1) as w:
            async with w.consumer(work, consume_timeout_ms=60_000) as consumer:
                await asyncio.sleep(30)
                await w.send(b"slow")
                await w.until_received(b"slow")
                clock = w.cluster.runtime.clock
                assert isinstance(clock, LoopClock)
                clock.step(step_ms)
                await asyncio.sleep(200)
                assert consumer.health().held_messages == 0
            assert w.received == [b"slow"]

    run_virtual(main())
