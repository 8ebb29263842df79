"""A message whose body cannot be decoded becomes a dead letter and blocks no other."""

from __future__ import annotations

import asyncio
import logging

import pytest

from kourou.client.calls_send import Outgoing, send_command, send_message
from kourou.client.consuming.consumer_config import PullConsumerConfig
from kourou.errors import ConnectionLostError, MalformedMessageError, MessageIllegalError
from kourou.model.group import ConsumeFromWhere, MessageModel
from kourou.model.message import Message
from kourou.model.properties import DLQ_REASON, encode_properties
from kourou.model.queue import MessageQueue
from kourou.model.sysflag import INNER_BATCH, NEED_UNWRAP
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.compression import CompressionType, compress
from kourou.protocol.record.encode import RecordDraft
from kourou.testing.inspection import config_of, instance_of
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, Recording, recording
from tests.client.consuming.receiving import BOTH_KINDS, receiving

QUEUE = MessageQueue(TOPIC, "broker-0", 0)
DEAD = MessageQueue("%DLQ%consumers", "broker-0", 0)
ZLIB = CompressionType.ZLIB.sys_flag
MIB = 1024 * 1024
GOOD = [b"good-%d" % number for number in range(6)]


async def send_stored(w: Recording, body: bytes, sys_flag: int) -> None:
    """Send a body that the broker stores as given."""
    async with w.cluster.producer() as producer:
        properties = encode_properties({"UNIQ_KEY": "BAD", "TAGS": "a"}).decode()
        outgoing = Outgoing(TOPIC, ("BAD",), body, properties, sys_flag=sys_flag)
        instance = instance_of(producer)
        address = await instance.routes.address(TOPIC, "broker-0", 3)
        command = send_command(outgoing, QUEUE, "producers", instance.runtime.clock.now_ms(), 4)
        await send_message(instance.pool, address, command, outgoing, QUEUE, timeout_s=3)


async def fill(w: Recording) -> None:
    """Store good messages with bad ones between them."""
    async with w.cluster.producer() as producer:
        for number, body in enumerate(GOOD):
            if number % 2:
                await send_stored(w, b"no zlib stream", ZLIB)
            await producer.send(Message(TOPIC, body), queue=QUEUE)


async def dead_letters(w: Recording) -> list[tuple[bytes, str]]:
    """Return bodies, as they are stored, and reasons of the group's dead letters."""
    async with w.cluster.pull_consumer() as reader:
        found = await reader.pull(DEAD, 0)
        return [(one.body, one.properties.get(DLQ_REASON, "")) for one in found.all_messages]


@pytest.mark.parametrize("is_ordered", [False, True])
def test_bad_messages_become_dead_letters_and_all_others_are_delivered(
    caplog: pytest.LogCaptureFixture, *, is_ordered: bool
) -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            await fill(w)
            consumer = w.consumer()
            got = w.received
            if is_ordered:
                consumer = w.cluster.push_consumer("consumers", config_of(consumer))
                consumer.subscribe(TOPIC)
                consumer.listen_orderly(lambda message: got.append(message.body))
            async with consumer:
                await w.until_received(*GOOD, timeout_s=20)
                await asyncio.sleep(6)
                assert consumer.health().is_ok
            assert got == GOOD
            assert await w.committed() == len(GOOD) + 3
            [first, *others] = await dead_letters(w)
            assert first[0] == b"no zlib stream", "byte for byte"
            assert "the body is not a valid zlib stream" in first[1]
            assert others == [first] * 2
            async with w.cluster.admin() as admin:
                listed = await admin.dead_letters("consumers")
            assert [one.message.msg_id for one in listed] == ["BAD"] * 3
            assert all("not a valid zlib stream" in (one.reason or "") for one in listed)

    with caplog.at_level(logging.ERROR):
        run_virtual(main())
    assert sum("message.unreadable" in one.getMessage() for one in caplog.records) == 3


@pytest.mark.parametrize("is_polled", [False, True])
def test_an_undecodable_batch_becomes_a_dead_letter(*, is_polled: bool) -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            async with w.cluster.admin() as admin:
                await admin.delete_topic(TOPIC)
                await admin.create_topic(TOPIC, queues=1, attributes={"queue.type": "BatchCQ"})
            async with w.consumer():
                pass  # the group's retry topic exists from now on
            good = [Message(TOPIC, body) for body in GOOD]
            async with w.cluster.producer() as producer:
                await producer.send_batch(good[:3])
                await store_bad_batch(w)
                await producer.send_batch(good[3:])
            if is_polled:
                await poll_all(w)
            else:
                async with w.consumer():
                    await w.until_received(*GOOD, timeout_s=20)
                    await asyncio.sleep(6)
                    assert await w.committed() == len(GOOD) + 2
            assert w.received == GOOD
            [(body, reason)] = await dead_letters(w)
            assert body == b"no batch"
            assert reason

    run_virtual(main())


async def store_bad_batch(w: Recording) -> None:
    """Store a batch of two messages, as a broker that does not validate batches would."""
    draft = RecordDraft(
        topic=TOPIC.encode(),
        queue_id=0,
        flag=0,
        sys_flag=INNER_BATCH | NEED_UNWRAP,
        born_at_ms=0,
        born_host=("127.0.0.1", 1),
        store_host=("127.0.0.1", 2),
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=b"no batch",
        properties=encode_properties({"UNIQ_KEY": "BAD", "INNER_NUM": "2"}),
    )
    assert (await w.cluster.broker().components.context.commit.put_and_wait([draft], 0)).appended


async def poll_all(w: Recording) -> None:
    """Poll all messages as a member of the group."""
    config = PullConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    async with w.cluster.pull_consumer("consumers", config) as reader:
        await reader.assign([QUEUE])
        async with asyncio.timeout(20):
            while len(w.received) < len(GOOD):
                w.received.extend([one.body for one in await reader.poll(timeout_ms=1_000)])


class NoSendBacks:
    """Fails requests that send messages back, while it is on."""

    is_on = True

    def before_request(self, address: str, command: RemotingCommand) -> None:
        if self.is_on and command.code == RequestCode.CONSUMER_SEND_MSG_BACK:
            raise ConnectionLostError(f"{address}: lost")

    def after_response(
        self, address: str, command: RemotingCommand, answer: RemotingCommand
    ) -> None:
        """Do nothing with answers."""


@BOTH_KINDS
def test_pulls_wait_at_a_bad_message_until_it_is_accepted_as_a_dead_letter(kind: str) -> None:
    async def main() -> None:
        hook = NoSendBacks()
        async with recording(queues=1) as w:
            await fill(w)
            async with receiving(w, kind, request_hooks=(hook,)) as consumer:
                await w.until_received(GOOD[0])
                await asyncio.sleep(120)
                assert w.received == GOOD[:1]
                assert await w.committed() == 1
                [problem] = consumer.health().problems
                assert "message BAD is unreadable" in problem
                hook.is_on = False
                await w.until_received(*GOOD, timeout_s=60)
                await asyncio.sleep(1)
                assert consumer.health().is_ok

    run_virtual(main())


def test_a_broadcasting_consumer_skips_bad_messages() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            await fill(w)
            async with w.consumer(message_model=MessageModel.BROADCASTING):
                await w.until_received(*GOOD, timeout_s=20)
                assert w.received == GOOD

    run_virtual(main())


def test_a_poller_gets_all_other_messages() -> None:
    async def main() -> None:
        async with recording(queues=1) as w:
            await fill(w)
            config = PullConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
            async with w.cluster.pull_consumer("consumers", config) as reader:
                await reader.assign([QUEUE])
                got: list[bytes] = []
                async with asyncio.timeout(20):
                    while len(got) < len(GOOD):
                        got += [one.body for one in await reader.poll(timeout_ms=1_000)]
                await reader.commit()
            assert got == GOOD
            assert await w.committed() == len(GOOD) + 3
            assert len(await dead_letters(w)) == 3

    run_virtual(main())


def test_a_direct_pull_names_the_bad_message_and_returns_the_others() -> None:
    async def main() -> None:
        async with recording(queues=1) as w, w.cluster.pull_consumer() as reader:
            await fill(w)
            found = await reader.pull(QUEUE, 0)
            with pytest.raises(MalformedMessageError, match=r"message BAD at offset 1 of .*zlib"):
                assert found.messages
            assert [one.body for one in found.readable] == GOOD
            assert [one.message.queue_offset for one in found.undecodable] == [1, 4, 7]
            assert found.next_offset == 9

    run_virtual(main())


def test_bodies_too_large_in_total_arrive_by_several_pulls() -> None:
    async def main() -> None:
        async with recording(queues=1) as w, w.cluster.pull_consumer() as reader:
            body = compress(bytes(60 * MIB), kind=CompressionType.ZSTD)
            for _ in range(6):
                await send_stored(w, body, CompressionType.ZSTD.sys_flag)
            first = await reader.pull(QUEUE, 0)
            assert (first.next_offset, len(first.messages)) == (4, 4)
            del first
            sizes: list[int] = []
            consumer = w.cluster.push_consumer("g", config_of(w.consumer()))
            consumer.subscribe(TOPIC)
            consumer.listen(lambda message: sizes.append(len(message.body)))
            async with consumer:
                await w.until(lambda: len(sizes) == 6)
            assert sizes == [60 * MIB] * 6

    run_virtual(main())


@pytest.mark.parametrize("body", [b"no zlib stream", compress(bytes(9_000))[:-5]])
def test_a_broker_that_verifies_compressed_bodies_refuses_unreadable_ones(body: bytes) -> None:
    async def main() -> None:
        async with recording(queues=1, verify_compressed_bodies=True) as w:
            await send_stored(w, compress(b"readable"), ZLIB)
            with pytest.raises(MessageIllegalError, match="its body cannot be read: the body is "):
                await send_stored(w, body, ZLIB)
            async with w.cluster.pull_consumer() as reader:
                found = await reader.pull(QUEUE, 0)
                assert [one.body for one in found.messages] == [b"readable"]
                assert found.next_offset == found.max_offset == 1

    run_virtual(main())
