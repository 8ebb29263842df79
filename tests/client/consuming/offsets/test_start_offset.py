"""Start offset of a new group while the first messages of a topic arrive."""

from __future__ import annotations

import asyncio

import pytest

from kourou.broker.config import FlushDiskType
from kourou.client.consuming.consumer_config import PullConsumerConfig
from kourou.client.consuming.offsets.offset_store import RemoteOffsets
from kourou.client.consuming.offsets.start_offset import find_offset_in_bounds
from kourou.model.group import ConsumeFromWhere
from kourou.model.message import Message
from kourou.model.queue import MessageQueue
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand
from kourou.testing.cluster import Cluster
from kourou.testing.inspection import instance_of
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, recording

QUEUES = 8


class AnswersOfRocketMQ:
    """Changes answers for an empty queue to RocketMQ's: a new group has no offset.

    Attributes:
        asked: queues whose start offset the consumer queries.
    """

    def __init__(self, cluster: Cluster, *, is_on: bool) -> None:
        self._cluster = cluster
        self._is_on = is_on
        self._seen: set[int] = set()
        self.asked: asyncio.Queue[int] = asyncio.Queue()

    def before_request(self, address: str, command: RemotingCommand) -> None:
        """Record the queue."""
        fields = command.ext_fields
        if fields.get("topic") != TOPIC or (
            command.code != RequestCode.GET_MAX_OFFSET and fields.get("setZeroIfNotFound") != "true"
        ):
            return
        queue_id = int(fields["queueId"])
        if queue_id not in self._seen:
            self._seen.add(queue_id)
            self.asked.put_nowait(queue_id)

    def after_response(
        self, address: str, command: RemotingCommand, answer: RemotingCommand
    ) -> None:
        """Replace the answer."""
        fields = command.ext_fields
        if command.code == RequestCode.QUERY_CONSUMER_OFFSET and fields["topic"] == TOPIC:
            store = self._cluster.broker().store
            if self._is_on and not store.reader.max_offset(TOPIC, int(fields["queueId"])):
                answer.code = ResponseCode.QUERY_NOT_FOUND


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("is_rocketmq", [False, True])
def test_new_group_misses_none_of_the_first_messages(seed: int, *, is_rocketmq: bool) -> None:
    async def main() -> None:
        async with (
            recording(queues=QUEUES, seed=seed, flush_disk_type=FlushDiskType.ASYNC_FLUSH) as w,
            w.cluster.producer() as producer,
            w.cluster.admin() as admin,
        ):
            # Connected before, so that the single requests race with each other.
            await admin.create_topic("other", queues=1)
            await producer.send(Message("other", b"-"))
            hook = AnswersOfRocketMQ(w.cluster, is_on=is_rocketmq)
            consumer = w.consumer(
                consume_from_where=ConsumeFromWhere.LAST_OFFSET, request_hooks=(hook,)
            )

            async def send() -> None:
                queue_id = await hook.asked.get()
                await asyncio.sleep(0.0001 * seed)
                queue = MessageQueue(TOPIC, "broker-0", queue_id)
                await producer.send(Message(TOPIC, b"%d" % queue_id), queue=queue)

            firsts = [b"%d" % queue_id for queue_id in range(QUEUES)]
            async with asyncio.TaskGroup() as tasks:
                for _ in range(QUEUES):
                    tasks.create_task(send())
                async with consumer:
                    await w.until_received(*firsts)
            assert sorted(w.received) == firsts

    run_virtual(main())


@pytest.mark.parametrize(
    ("committed", "expected"), [(None, (0, False)), (0, (0, True)), (3, (3, True)), (5, (5, True))]
)
def test_a_queue_that_ends_before_our_offset_is_resumed_at_the_committed_offset(
    committed: int | None, expected: tuple[int, bool]
) -> None:
    async def main() -> None:
        queue = MessageQueue(TOPIC, "broker-0", 0)
        async with recording(queues=1) as w, w.cluster.pull_consumer("g") as reader:
            await w.send(*[b"%d" % number for number in range(5)])
            if committed is not None:
                await reader.commit_offset(queue, committed)
            offsets = RemoteOffsets(instance_of(reader), "g", 3_000)

            found = await find_offset_in_bounds(
                instance_of(reader), offsets, queue, PullConsumerConfig()
            )

            assert found == expected

    run_virtual(main())
