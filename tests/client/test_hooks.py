"""Hooks that forbid sends and filter pulled messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from kourou.client.sending.producer import Producer
from kourou.client.sending.send_hooks import SendAttempt
from kourou.errors import UsageError
from kourou.model.message import Message, MessageExt
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, recording
from tests.client.consuming.receiving import BOTH_KINDS, receiving


class Watch:
    """Forbids messages that contain the word."""

    def __init__(self) -> None:
        self.calls = 0

    def check_send(self, attempt: SendAttempt) -> None:
        self.calls += 1
        if any(b"secret" in message.body for message in attempt.messages):
            raise UsageError("no secrets")


def test_forbidden_send_is_not_sent() -> None:
    async def main() -> None:
        async with recording() as w:
            watch = Watch()
            producer = Producer(
                "orders", w.cluster.namesrv_addr, hooks=[watch], runtime=w.cluster.runtime
            )
            async with producer:
                await producer.send(Message(TOPIC, b"open"))
                secret = Message(TOPIC, b"a secret")
                with pytest.raises(UsageError, match="no secrets"):
                    await producer.send(secret)
                with pytest.raises(UsageError, match="no secrets"):
                    await producer.send_oneway(secret)
                with pytest.raises(UsageError, match="no secrets"):
                    await producer.send_batch([Message(TOPIC, b"x"), secret])
                with pytest.raises(UsageError, match="no secrets"):
                    await (await producer.submit(secret))
            assert watch.calls == 5
            async with w.consumer():
                await w.until_received(b"open")
            assert w.received == [b"open"]

    run_virtual(main())


def without_odd(messages: Sequence[MessageExt]) -> Iterable[MessageExt]:
    return [message for message in messages if int(message.body) % 2 == 0]


@BOTH_KINDS
def test_filtered_message_is_skipped_and_committed(kind: str) -> None:
    async def main() -> None:
        async with recording() as w:
            bodies = [b"%d" % number for number in range(20)]
            await w.send(*bodies)
            async with receiving(w, kind, message_filter=without_odd):
                await w.until_received(*bodies[::2])
            assert sorted(w.received) == sorted(bodies[::2])
            assert await w.committed() == 20

    run_virtual(main())


@BOTH_KINDS
@pytest.mark.parametrize("failure", [ValueError, GeneratorExit])
def test_filter_that_raises_passes_all_messages(
    kind: str, failure: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: Sequence[MessageExt]) -> Iterable[MessageExt]:
        raise failure("broken")

    async def main() -> None:
        async with recording() as w:
            await w.send(b"1", b"2")
            async with receiving(w, kind, message_filter=broken):
                await w.until_received(b"1", b"2")

    run_virtual(main())
    assert any("message_filter.failed" in one.getMessage() for one in caplog.records)


def test_filter_gets_redelivered_messages_under_their_original_topic() -> None:
    topics: list[str] = []

    def record(messages: Sequence[MessageExt]) -> Iterable[MessageExt]:
        topics.extend(message.topic for message in messages)
        return messages

    def fail_once(message: MessageExt) -> None:
        if not message.reconsume_times:
            raise ValueError

    async def main() -> None:
        async with recording() as w:
            await w.send(b"1")
            async with w.consumer(fail_once, message_filter=record):
                await w.until_received(b"1", b"1")

    run_virtual(main())
    assert topics == [TOPIC, TOPIC]
