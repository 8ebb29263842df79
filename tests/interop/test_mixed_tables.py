"""Topics and groups of a set of a Java broker and one of Kourou, after each has replaced the other.

Topics are created, deleted and made again, and so are groups, more than 10 s before the failover,
within which a Java slave copies the tables.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from kourou.client.administration.admin import AdminClient
from kourou.client.config import ProducerConfig
from kourou.client.consuming.pull_consumer import PullConsumer
from kourou.client.sending.producer import Producer
from kourou.errors import GroupNotFoundError, KourouError, TopicNotFoundError
from kourou.model.group import SubscriptionGroup
from kourou.model.message import Message
from kourou.model.topic import TABLES_TOPIC
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import request
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.pool import ConnectionPool
from kourou.remoting.runtime import Runtime
from tests.interop.test_controller import in_sync, wait_for
from tests.interop.test_mixed_failover import Mixed, mixed_set

COPIED_S = 12
"""Longer than the pause in which a Java slave copies topics and groups."""
PATIENCE_S = 60
NAME = "broker-a"


async def send(namesrv: str, topic: str, *bodies: bytes) -> None:
    """Send each body until it is accepted."""
    config = ProducerConfig(send_timeout_ms=15_000)
    async with Producer("producers", namesrv, config=config) as producer:
        for body in bodies:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    try:
                        await producer.send(Message(topic, body))
                        break
                    except KourouError:
                        await asyncio.sleep(0.3)


async def bodies(namesrv: str, topic: str) -> list[bytes]:
    """Return the bodies of all messages that consumers of a topic can pull, sorted."""
    found: list[bytes] = []
    async with AdminClient(namesrv) as admin, PullConsumer("readers", namesrv) as consumer:
        for queue, offsets in (await admin.topic_stats(topic)).offsets.items():
            offset = offsets.min_offset
            while offset < offsets.max_offset:
                pulled = await consumer.pull(queue, offset)
                found += [message.body for message in pulled.messages]
                assert pulled.next_offset > offset
                offset = pulled.next_offset
    return sorted(found)


async def clean_unused_topics(address: str) -> None:
    """Let a broker remove the queues of topics that it has not, as `mqadmin cleanUnusedTopic`."""
    pool = ConnectionPool(Runtime.system(), {}, ConnectionLimits())
    try:
        await pool.request(address, request(RequestCode.CLEAN_UNUSED_TOPIC), PATIENCE_S)
    finally:
        await pool.close()


async def fill(namesrv: str, *, cleaned: str | None = None) -> None:
    """Create topics and groups, delete some of them, and make others again.

    Args:
        namesrv: the name server.
        cleaned: a Java slave, whose queues of deleted topics are removed before they are made
            again.
    """
    async with AdminClient(namesrv) as admin:
        for topic in ("gone", "again"):
            await admin.create_topic(topic, queues=2)
            await send(namesrv, topic, *(b"old%d" % number for number in range(6)))
        for group in ("g-gone", "g-again"):
            await admin.create_group(SubscriptionGroup(group, retry_max_times=3))
        await asyncio.sleep(COPIED_S)
        for topic in ("gone", "again"):
            await admin.delete_topic(topic)
        for group in ("g-gone", "g-again"):
            await admin.delete_group(group)
        if cleaned is not None:
            await asyncio.sleep(COPIED_S)
            await clean_unused_topics(cleaned)
        await admin.create_topic("again", queues=1)
        await admin.create_topic("fresh", queues=3)
        await admin.create_group(SubscriptionGroup("g-again", retry_max_times=7))
        await send(namesrv, "again", *NEW)
        await send(namesrv, "fresh", *NEW)
    await asyncio.sleep(COPIED_S)


NEW = [b"new%d" % number for number in range(6)]


async def check(namesrv: str) -> None:
    """Check the topics and groups of `fill` at the master."""
    async with AdminClient(namesrv) as admin:
        with pytest.raises(TopicNotFoundError):
            await admin.topic_config("gone")
        for topic, queues in (("again", 1), ("fresh", 3)):
            assert (await admin.topic_config(topic))[NAME].read_queue_nums == queues
        assert (await admin.group_config("g-again"))[NAME].retry_max_times == 7
    assert await bodies(namesrv, "fresh") == NEW


async def drive_kourou_first(mixed: Mixed, namesrv: str) -> None:
    """Replace a Kourou master by its Java slave, and that one by Kourou."""
    controller = mixed.controllers.leading
    await asyncio.to_thread(mixed.start_kourou)
    assert mixed.kourou is not None
    await wait_for(controller, in_sync(1))
    mixed.java.run_broker()
    await wait_for(controller, in_sync(2))
    await fill(namesrv, cleaned=mixed.java.broker_addr)
    async with AdminClient(namesrv) as admin:
        with pytest.raises(GroupNotFoundError):
            await admin.group_config("g-gone")
        [offsets] = (await admin.topic_stats(TABLES_TOPIC)).offsets.values()
        records = offsets.max_offset

    mixed.kourou.stop(signal.SIGKILL)
    await wait_for(controller, lambda now: now.master_broker_id == 2)
    await send(namesrv, "again", b"z-java")
    await check(namesrv)
    assert await bodies(namesrv, "again") == [*NEW, b"z-java"]
    async with AdminClient(namesrv) as admin:
        [offsets] = (await admin.topic_stats(TABLES_TOPIC)).offsets.values()
        assert offsets.max_offset == records > 0
        await admin.create_topic("by-java", queues=2)
    await send(namesrv, "by-java", b"x")

    await asyncio.to_thread(mixed.start_kourou)
    await wait_for(controller, in_sync(2))
    await asyncio.sleep(COPIED_S)
    mixed.java.kill()
    await wait_for(controller, lambda now: now.master_broker_id == 1)
    await send(namesrv, "again", b"z-kourou")
    await check(namesrv)
    assert await bodies(namesrv, "again") == [*NEW, b"z-java", b"z-kourou"]
    assert await bodies(namesrv, "by-java") == [b"x"]


async def drive_java_first(mixed: Mixed, namesrv: str) -> None:
    """Replace a Java master by its Kourou slave."""
    controller = mixed.controllers.leading
    mixed.java.run_broker()
    await wait_for(controller, in_sync(1))
    await asyncio.to_thread(mixed.start_kourou)
    await wait_for(controller, in_sync(2))
    await fill(namesrv)
    mixed.java.kill()
    await wait_for(controller, lambda now: now.master_broker_id == 2)
    await send(namesrv, "again", b"z-kourou")
    await check(namesrv)
    assert await bodies(namesrv, "again") == [*NEW, b"z-kourou"]


@pytest.mark.parametrize("kind", ["file", "java"])
def test_tables_of_a_kourou_master_hold_at_its_java_slave_and_back(
    jars: str, tmp_path: Path, kind: str
) -> None:
    with mixed_set(jars, tmp_path, kind) as (mixed, namesrv):
        asyncio.run(drive_kourou_first(mixed, namesrv))
        assert mixed.stop_kourou() == 0


def test_tables_of_a_java_master_hold_at_its_kourou_slave(jars: str, tmp_path: Path) -> None:
    with mixed_set(jars, tmp_path, "file") as (mixed, namesrv):
        asyncio.run(drive_java_first(mixed, namesrv))
        assert mixed.stop_kourou() == 0
