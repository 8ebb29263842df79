"""Statistics of brokers and consumers, compared with a recorded history."""

from __future__ import annotations

import asyncio
from collections import Counter

from kourou.client.administration.admin import AdminClient
from kourou.client.consuming.acknowledging.redelivery import DeadLetter, RetryLater
from kourou.errors import RemoteSystemError
from kourou.model.message import Message, MessageExt
from kourou.model.topic import SCHEDULE_TOPIC, dlq_topic, retry_topic
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, recording

GROUP = "consumers"
OTHERS = "others"
COUNT = 60
DELIVERIES = {0: 1, 1: 3}
"""Deliveries of a message by its number modulo 5, by default 1; all deliveries of 0 fail."""


def deliveries_of(number: int) -> int:
    return DELIVERIES.get(number % 5, 1)


def is_refused(number: int) -> bool:
    return number % 5 == 0


REFUSED = sum(map(is_refused, range(COUNT)))
RETRIES = sum(deliveries_of(number) - 1 for number in range(COUNT))


class Figures:
    """The counters of the only broker, of the last minute."""

    def __init__(self, cluster: Cluster, admin: AdminClient) -> None:
        host, port = cluster.broker_address()
        self.address = f"{host}:{port}"
        self.admin = admin

    async def __call__(self, name: str, key: str) -> int:
        try:
            return (await self.admin.broker_stats(self.address, name, key)).minute.sum
        except RemoteSystemError:
            return 0


def treat(message: MessageExt) -> None:
    number = int(message.body)
    if is_refused(number):
        raise DeadLetter("refused")
    if message.reconsume_times + 1 < deliveries_of(number):
        raise RetryLater(level=1)


def test_counters_match_sent_consumed_and_sent_back_messages() -> None:
    async def main() -> None:
        async with recording(queues=4) as w, w.cluster.admin() as admin:
            figures = Figures(w.cluster, admin)
            queues: Counter[int] = Counter()
            async with (
                w.consumer(treat) as consumer,
                w.consumer(group=OTHERS) as other,
                w.cluster.producer("senders") as producer,
            ):
                await asyncio.sleep(11)  # the following sends are between two samples
                for number in range(COUNT):
                    receipt = await producer.send(Message(TOPIC, b"%d" % number))
                    queues[receipt.queue.queue_id] += 1
                await asyncio.sleep(30)

                assert await figures("TOPIC_PUT_NUMS", TOPIC) == COUNT
                for queue_id, count in queues.items():
                    assert await figures("QUEUE_PUT_NUMS", f"{TOPIC}@{queue_id}") == count
                for group in (GROUP, OTHERS):
                    assert await figures("GROUP_GET_NUMS", f"{TOPIC}@{group}") == COUNT
                back = f"{TOPIC}@{GROUP}"
                assert await figures("SNDBCK_PUT_NUMS", back) == RETRIES + REFUSED
                assert await figures("SNDBCK2DLQ_TIMES", back) == REFUSED
                retry = retry_topic(GROUP)
                assert await figures("TOPIC_PUT_NUMS", SCHEDULE_TOPIC) == RETRIES
                assert await figures("TOPIC_PUT_NUMS", retry) == RETRIES
                assert await figures("GROUP_GET_NUMS", f"{retry}@{GROUP}") == RETRIES
                assert await figures("TOPIC_PUT_NUMS", dlq_topic(GROUP)) == REFUSED
                assert await figures("SNDBCK_PUT_NUMS", f"{TOPIC}@{OTHERS}") == 0

                [mine, theirs] = await admin.all_stats([TOPIC])
                assert (mine.group, theirs.group) == (GROUP, OTHERS)
                assert (mine.in_24h, mine.out_24h, mine.lag) == (COUNT, COUNT, 0)

                reported = consumer.stats()[TOPIC]
                assert reported.consume_failed_messages == REFUSED + RETRIES
                assert other.stats()[TOPIC].consume_failed_messages == 0
                [one] = (await admin.consumer_connection(GROUP)).connections
                assert one.client_id == consumer.client_id
                [sender] = await admin.producer_connection("senders", TOPIC)
                assert sender.client_id == producer.client_id
            await assert_offsets_agree(admin)

    run_virtual(main())


async def assert_offsets_agree(admin: AdminClient) -> None:
    """Compare the groups' committed offsets with the stored messages, after members have left."""
    ends = await admin.topic_stats(TOPIC)
    assert sum(at.max_offset for at in ends.offsets.values()) == COUNT
    for group in (GROUP, OTHERS):
        stats = await admin.consume_stats(group)
        for queue, at in stats.offsets.items():
            assert at.consumer_offset == at.broker_offset, queue
    retries = await admin.topic_stats(retry_topic(GROUP))
    assert sum(at.max_offset for at in retries.offsets.values()) == RETRIES


def test_lag_is_stored_minus_committed() -> None:
    async def main() -> None:
        async with recording(queues=2) as w, w.cluster.admin() as admin:
            figures = Figures(w.cluster, admin)
            async with w.consumer():
                await w.send(*[b"%d" % number for number in range(10)])
                await w.until(lambda: len(w.received) == 10)
            await w.send(*[b"%d" % number for number in range(7)])
            [description] = [one for one in await admin.describe_groups() if one.group == GROUP]
            assert (description.lag, description.members) == (7, ())
            listed = await admin.broker_consume_stats(figures.address)
            assert listed.total_diff == 7
            [row] = await admin.all_stats([TOPIC])
            assert (row.group, row.lag) == (GROUP, 7)
            await admin.skip_backlog(GROUP, TOPIC)
            assert (await admin.describe_group(GROUP)).lag == 0

    run_virtual(main())


def test_runtime_info_sums_all_topics() -> None:
    async def main() -> None:
        async with recording(queues=1) as w, w.cluster.admin() as admin:
            figures = Figures(w.cluster, admin)
            async with w.consumer():
                await w.send(*[b"%d" % number for number in range(25)])
                await w.until(lambda: len(w.received) == 25)
            info = await admin.runtime_info(figures.address)
            assert info["msgPutTotalTodayNow"] == "25"
            assert info["msgGetTotalTodayNow"] == "25"
            assert info["putMessageTimesTotal"] == "25"

    run_virtual(main())
