"""Test of a store's config files that Kourou and Java save in turn.

Kourou adds a member with a checksum to the files that it saves. Java must ignore the member, which
the state of its broker shows, and omits it in the files that it saves.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from kourou import AdminClient, Message, MessageQueue, Producer, PullConsumer
from kourou.model.group import SubscriptionGroup
from kourou.protocol import fastjson
from kourou.store.state.config_file import unseal
from kourou.testing.process import Serving
from tests.interop.ledger import Ledger, read_all
from tests.interop.peer import start_java

TOPIC, GROUP, DELAYED = "Settings", "billing", "Delayed"
TABLES = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json")
DELAYS = "messageDelayLevel=1s 1s 1s 1s 1s 1s\n"


async def _set_up(namesrv_addr: str) -> None:
    async with AdminClient(namesrv_addr) as admin:
        await admin.create_topic(TOPIC, queues=3, attributes={"message.type": "NORMAL"})
        await admin.create_topic(DELAYED, queues=1)
        group = SubscriptionGroup(GROUP, retry_max_times=3, consume_broadcast_enable=False)
        await admin.create_group(group)
        await admin.kv_put("mine", "key", 'väl"ue')


async def _commit(namesrv_addr: str, offsets: list[int]) -> None:
    async with PullConsumer(GROUP, namesrv_addr) as consumer:
        for queue in await consumer.fetch_subscribe_message_queues(TOPIC):
            await consumer.commit_offset(queue, offsets[queue.queue_id])


async def _deliver_later(namesrv_addr: str, key: str) -> list[str]:
    """Send a delayed message, wait for it, and return the keys of all messages."""
    async with Producer("interop-delay", namesrv_addr) as producer:
        await producer.send(
            Message(DELAYED, b"later", keys=[key], delay_level=2), timeout_ms=15_000
        )
    keys: list[str] = []
    async with asyncio.timeout(60):
        while key not in keys:  # only another read shows new messages
            keys = [message.keys[0] for message in await read_all(namesrv_addr, DELAYED)]
    return keys


async def _look(namesrv_addr: str) -> dict[str, Any]:
    """Return the state of the servers."""
    async with AdminClient(namesrv_addr) as admin:
        (topic,) = (await admin.topic_config(TOPIC)).values()
        (group,) = (await admin.group_config(GROUP)).values()
        stats = await admin.consume_stats(GROUP, TOPIC)
        return {
            "queues": (topic.read_queue_nums, topic.write_queue_nums),
            "attributes": dict(topic.attributes),
            "retries": group.retry_max_times,
            "broadcast": group.consume_broadcast_enable,
            "offsets": [at.consumer_offset for _, at in sorted(stats.offsets.items(), key=_queue)],
            "kv": await admin.kv_get("mine", "key"),
        }


def _queue(item: tuple[MessageQueue, object]) -> int:
    return item[0].queue_id


def sequences(store: Path) -> dict[str, int]:
    """Return the save counter of each file, 0 if Java saved it last."""
    return {name: unseal((store / "config" / name).read_bytes()).sequence for name in TABLES}


def test_java_reads_sealed_config_files_and_kourou_those_that_java_saved(
    jars: str, tmp_path: Path
) -> None:
    store, ledger = tmp_path / "store", Ledger(TOPIC)
    conf = tmp_path / "broker.conf"
    conf.write_text(DELAYS)
    expected = {
        "queues": (3, 3),
        "attributes": {"message.type": "NORMAL"},
        "retries": 3,
        "broadcast": False,
        "offsets": [5, 0, 7],
        "kv": 'väl"ue',
    }

    async def first_visit(namesrv_addr: str) -> None:
        await _set_up(namesrv_addr)
        await ledger.send(namesrv_addr, "kourou", 30)
        await _commit(namesrv_addr, [5, 0, 7])
        assert await _deliver_later(namesrv_addr, "one") == ["one"]
        assert await _look(namesrv_addr) == expected

    with Serving.start(store, "--config", str(conf)) as serving:
        asyncio.run(first_visit(serving.namesrv))
        assert serving.stop().code == 0
    assert all(sequences(store).values())

    async def java_visit(namesrv_addr: str) -> None:
        await ledger.assert_stored(namesrv_addr)
        assert await _look(namesrv_addr) == expected
        assert await _deliver_later(namesrv_addr, "two") == ["one", "two"]
        await _commit(namesrv_addr, [6, 1, 8])
        async with AdminClient(namesrv_addr) as admin:
            await admin.update_group(GROUP, retry_max_times=4)
            await admin.create_topic("Javas", queues=2)

    kv = store / "namesrv" / "kvConfig.json"
    java = start_java(jars, tmp_path / "java", store=store, namesrv_options=f"kvConfigPath={kv}\n")
    try:
        asyncio.run(java_visit(java.namesrv_addr))
    finally:
        java.stop()
    assert not any(sequences(store).values())
    topics = fastjson.loads((store / "config/topics.json").read_bytes())
    assert "kourouSeal" not in topics

    async def last_visit(namesrv_addr: str) -> None:
        await ledger.assert_stored(namesrv_addr)
        assert await _look(namesrv_addr) == {**expected, "retries": 4, "offsets": [6, 1, 8]}
        assert await _deliver_later(namesrv_addr, "three") == ["one", "two", "three"]
        async with AdminClient(namesrv_addr) as admin:
            assert "Javas" in await admin.topic_list()

    with Serving.start(store, "--config", str(conf)) as serving:
        asyncio.run(last_visit(serving.namesrv))
        outcome = serving.stop()
    assert outcome.code == 0
    assert "config_file.restored" not in outcome.err
    assert all(sequences(store)[name] for name in ("delayOffset.json", "consumerOffset.json"))
