"""Topics that are deleted and created again while their consumers do not pull."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from kourou.client.consuming.consumer_config import PullConsumerConfig
from kourou.client.consuming.push_consumer import PushConsumer
from kourou.errors import ConnectionLostError, TopicNotFoundError
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import MessageExt
from kourou.model.queue import MessageQueue
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.offsets import TOPIC_BEGIN_FIELD
from kourou.testing.inspection import config_of
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, Recording, recording
from tests.client.consuming.receiving import BOTH_KINDS, receiving

OLD = [b"old-%d" % number for number in range(20)]
QUEUE = MessageQueue(TOPIC, "broker-0", 0)
COUNTS = [1, 19, 20, 21, 60]
"""Numbers of messages in the new topic: fewer than in the old one, as many, and more."""


def new(count: int) -> list[bytes]:
    return [b"new-%d" % number for number in range(count)]


async def recreate(w: Recording, count: int, after_s: float) -> None:
    """Delete the topic, create it again, and send messages to it."""
    async with w.cluster.admin() as admin:
        await admin.delete_topic(TOPIC)
        await asyncio.sleep(after_s)
        await admin.create_topic(TOPIC, queues=1)
        await w.send(*new(count))


async def assert_all_consumed(w: Recording, count: int) -> None:
    """Assert that all messages of the new topic are delivered within 90 s, and committed."""
    await w.until_received(*new(count), timeout_s=90)
    await asyncio.sleep(6)
    assert Counter(w.received)[b"new-0"] == 1, "each once"
    assert await w.committed() == count


@asynccontextmanager
async def consumed(w: Recording, consumer: PushConsumer) -> AsyncIterator[PushConsumer]:
    """Consume and commit the messages of the old topic."""
    await w.send(*OLD)
    async with consumer:
        await w.until_received(*OLD)
        await asyncio.sleep(6)
        yield consumer


@pytest.mark.parametrize("after_s", [0.0, 70.0])
@pytest.mark.parametrize("count", COUNTS)
def test_a_paused_consumer_gets_all_messages_of_a_topic_created_again(
    count: int, after_s: float
) -> None:
    async def main() -> None:
        async with recording(queues=1) as w, consumed(w, w.consumer()) as consumer:
            consumer.pause()
            await asyncio.sleep(40)  # its last pull was answered meanwhile
            await recreate(w, count, after_s)
            await asyncio.sleep(20)  # its offsets are persisted, and meaningless now
            consumer.resume()
            await assert_all_consumed(w, count)

    run_virtual(main())


@BOTH_KINDS
@pytest.mark.parametrize("count", COUNTS)
def test_a_disconnected_consumer_gets_all_messages_of_a_topic_created_again(
    count: int, kind: str
) -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            await w.send(*OLD)
            async with receiving(w, kind, pull_error_delay_ms=20_000):
                await w.until_received(*OLD)
                await asyncio.sleep(6)  # they are committed
                w.cluster.network.cut(w.cluster.broker_address())  # the pull is not answered
                w.cluster.network.heal(w.cluster.broker_address())
                await recreate(w, count, 0)
                await assert_all_consumed(w, count)

    run_virtual(main())


@pytest.mark.parametrize("count", COUNTS)
def test_a_dead_paused_consumer_leaves_the_new_topic_s_messages_to_another(count: int) -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            async with consumed(w, w.consumer()) as consumer:
                consumer.pause()
                await asyncio.sleep(40)
                await recreate(w, count, 0)
                await asyncio.sleep(20)
            async with w.consumer(consume_from_where=ConsumeFromWhere.LAST_OFFSET):
                await assert_all_consumed(w, count)

    run_virtual(main())


@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.parametrize("count", COUNTS)
def test_a_flow_controlled_consumer_gets_all_messages_of_a_topic_created_again(
    count: int, *, is_ordered: bool
) -> None:
    async def main() -> None:
        is_free = asyncio.Event()

        async def wait(message: MessageExt) -> None:
            if message.body == OLD[-1]:
                await is_free.wait()
            if is_ordered:
                w.received.append(message.body)

        async with recording(queues=1) as w:
            consumer = w.consumer(wait, pull_threshold_count=1, pull_batch_size=2)
            if is_ordered:
                consumer = w.cluster.push_consumer("consumers", config_of(consumer))
                consumer.subscribe(TOPIC)
                consumer.listen_orderly(wait)
            await w.send(*OLD, *OLD)
            async with consumer:
                await asyncio.sleep(10)
                await recreate(w, count, 0)
                await asyncio.sleep(20)
                is_free.set()
                await assert_all_consumed(w, count)

    run_virtual(main())


@pytest.mark.parametrize("is_paused", [True, False])
@pytest.mark.parametrize("count", COUNTS)
def test_a_poller_gets_all_messages_of_a_topic_created_again(
    count: int, *, is_paused: bool
) -> None:
    async def main() -> None:
        config = PullConsumerConfig(
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET, pull_threshold_count=1
        )
        async with (
            recording(queues=1) as w,
            w.cluster.pull_consumer("consumers", config) as reader,
        ):
            await reader.assign([QUEUE])
            await w.send(*OLD)
            got: list[bytes] = []

            async def until_received(is_enough: Callable[[], bool]) -> None:
                async with asyncio.timeout(60):
                    while not is_enough():
                        got.extend([one.body for one in await reader.poll(timeout_ms=1_000)])

            await until_received(lambda: len(got) == len(OLD))
            await reader.commit()
            if is_paused:
                reader.pause([QUEUE])
            else:
                await w.send(*OLD)  # it pulls some of these, and then no more
            await asyncio.sleep(60)
            await recreate(w, count, 0)
            with pytest.raises(TopicNotFoundError, match="deleted and created again"):
                await reader.commit()
            await asyncio.sleep(20)
            reader.resume([QUEUE])
            await until_received(lambda: not set(new(count)) - set(got))
            await reader.poll(timeout_ms=0)
            await reader.commit()
            assert await w.committed() == count

    run_virtual(main())


class FailingBounds:
    """Fails requests for the first offset of a queue.

    Attributes:
        is_on: whether it does.
    """

    def __init__(self) -> None:
        self.is_on = False

    def before_request(self, address: str, command: RemotingCommand) -> None:
        """Fail a request."""
        if command.code == RequestCode.GET_MIN_OFFSET and self.is_on:
            raise ConnectionLostError(f"connection to {address} lost")

    def after_response(self, *_: object) -> None:
        """Do nothing."""


@pytest.mark.parametrize("count", COUNTS)
def test_offset_of_a_deleted_topic_is_not_committed_while_its_correction_fails(count: int) -> None:
    async def main() -> None:
        hook = FailingBounds()
        config = PullConsumerConfig(
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            auto_commit=False,
            pull_error_delay_ms=5_000,
            request_hooks=(hook,),
        )
        async with (
            recording(queues=1) as w,
            w.cluster.pull_consumer("consumers", config) as reader,
        ):

            async def poll_until(bodies: list[bytes]) -> None:
                while set(bodies) - set(w.received):
                    messages = await reader.poll(timeout_ms=1_000)
                    w.received.extend(one.body for one in messages)
                    with suppress(TopicNotFoundError):
                        await reader.commit()

            await reader.assign([QUEUE])
            await w.send(*OLD)
            await poll_until(OLD)
            hook.is_on = True
            await recreate(w, count, 0)
            with suppress(TimeoutError):
                await asyncio.wait_for(poll_until(new(count)), 20)
            hook.is_on = False
            await asyncio.wait_for(poll_until(new(count)), 90)
            assert await w.committed() == count

    run_virtual(main())


class Pulls:
    """Records the topics that pulls name, by `TOPIC_BEGIN_FIELD`."""

    def __init__(self) -> None:
        self.begins: list[str | None] = []

    def before_request(self, _: str, command: RemotingCommand) -> None:
        """Record a pull."""
        codes = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
        if command.code in codes and command.ext_fields["topic"] == TOPIC:
            self.begins.append(command.ext_fields.get(TOPIC_BEGIN_FIELD))

    def after_response(self, *_: object) -> None:
        """Do nothing."""


@BOTH_KINDS
def test_each_pull_names_the_topic_of_its_offset(kind: str) -> None:
    async def main() -> None:
        hook = Pulls()
        async with recording(queues=1) as w:
            await w.send(*OLD)
            async with receiving(w, kind, request_hooks=(hook,)):
                await w.until_received(*OLD)
                assert set(hook.begins) == {"0"}
                await recreate(w, 20, 0)
                await w.until_received(*new(20))
            begin = w.cluster.broker().store.reader.topic_begin(TOPIC)
            assert begin
            # One pull learns of the deletion, and the next one of the new bounds.
            assert hook.begins[-1] == str(begin)
            assert hook.begins.count(None) == 1

    run_virtual(main())
