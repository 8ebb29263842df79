"""Test of a store with many features that moves between Java and Kourou and back.

Extension units with tag filters, bodies of every compression, scheduled messages, deleted topics,
and queues and index that `store rebuild` has rebuilt.
"""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

from kourou import (
    AdminClient,
    CompressionType,
    Message,
    MessageExt,
    Producer,
    ProducerConfig,
    PullConsumer,
    PullConsumerConfig,
)
from kourou.model.group import ConsumeFromWhere
from kourou.testing.process import Serving, run_command
from tests.interop.ledger import Ledger, read_all
from tests.interop.mqadmin import Mqadmin
from tests.interop.peer import start_java

TOPIC, GONE, PACKED, LATER = "Extended", "Gone", "Packed", "Later"
COUNT = 60

DELAYS = "messageDelayLevel=1s 1s 1s 1s 1s 20s\n"
OPTIONS = f"{DELAYS}enableConsumeQueueExt=true\nmappedFileSizeConsumeQueueExt=1048576\n"
_NUMBERS = itertools.count()
"""Numbers for names of new groups."""

BODY = b"squeeze me " * 2_000


class Luggage:
    """The content of the store besides the ledger's messages."""

    def __init__(self) -> None:
        self.ledger = Ledger(TOPIC)
        self.packed: set[str] = set()
        self.later: set[str] = set()

    async def assert_found(self, namesrv_addr: str) -> None:
        """Assert that all of it is found, except the topic that the other broker deleted."""
        ledger = self.ledger
        await ledger.assert_stored(namesrv_addr)
        assert await ledger.find(namesrv_addr, ledger.ids) == []
        for origin in ("kourou", "java"):
            expected = {key for key in ledger.ids if key.startswith(origin)}
            assert await _filtered(namesrv_addr, origin, len(expected)) == expected
        packed = await read_all(namesrv_addr, PACKED)
        assert {message.keys[0] for message in packed} == self.packed
        assert {message.body for message in packed} == {BODY}
        async with asyncio.timeout(60):
            while await _keys(namesrv_addr, LATER) != self.later:
                pass  # only another read shows new messages
        async with AdminClient(namesrv_addr) as admin:
            assert GONE not in await admin.topic_list()

    async def add(self, namesrv_addr: str, origin: str) -> None:
        """Add messages of each kind; delete a topic with messages."""
        gone = Ledger(GONE)
        await gone.send(namesrv_addr, origin, COUNT)
        await gone.assert_stored(namesrv_addr)
        async with AdminClient(namesrv_addr) as admin:
            await admin.delete_topic(GONE)
        await self.ledger.send(namesrv_addr, origin, COUNT)
        for kind in CompressionType:
            config = ProducerConfig(compress_type=kind)
            async with Producer("packing", namesrv_addr, config=config) as producer:
                key = f"{origin}-{kind.name}-{len(self.packed)}"
                receipt = await producer.send(Message(PACKED, BODY, keys=[key]), timeout_ms=15_000)
                assert receipt.msg_id
                self.packed.add(key)
        key = f"{origin}-{len(self.later)}"
        async with Producer("delaying", namesrv_addr) as producer:
            message = Message(LATER, b"later", keys=[key], delay_level=6)
            await producer.send(message, timeout_ms=15_000)
        self.later.add(key)


async def _filtered(namesrv_addr: str, tag: str, count: int) -> set[str]:
    """Return the keys that a group with a tag filter receives."""
    received: list[MessageExt] = []
    config = PullConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer = PullConsumer(f"wants-{tag}-{next(_NUMBERS)}", namesrv_addr, config=config)
    consumer.subscribe(TOPIC, tags=tag)
    async with consumer, asyncio.timeout(60):
        while len(received) < count:
            received += await consumer.poll(10_000)
    return {message.keys[0] for message in received}


async def _keys(namesrv_addr: str, topic: str) -> set[str]:
    return {message.keys[0] for message in await read_all(namesrv_addr, topic)}


def _query(namesrv_addr: str, home: Path, luggage: Luggage) -> None:
    """Find a message of each broker by `mqadmin`."""
    keys = {
        origin: key for key in luggage.ledger.ids for origin in ("java", "kourou") if origin in key
    }
    with Mqadmin(namesrv_addr, home) as mqadmin:
        for key in keys.values():
            by_key = mqadmin.run("queryMsgByKey", "-t", TOPIC, "-k", key)
            assert luggage.ledger.ids[key] in by_key.out, by_key
            unique = luggage.ledger.ids[key]
            by_id = mqadmin.run("queryMsgByUniqueKey", "-t", TOPIC, "-i", unique)
            assert key in by_id.out, by_id


def test_store_with_many_features_moves_between_brokers(jars: str, tmp_path: Path) -> None:
    store, luggage, conf = tmp_path / "store", Luggage(), tmp_path / "broker.conf"
    conf.write_text(OPTIONS)

    def visit_java(*, is_first: bool) -> None:
        java = start_java(jars, tmp_path / "java", store=store, options=OPTIONS)
        try:
            if not is_first:
                asyncio.run(luggage.assert_found(java.namesrv_addr))
            asyncio.run(luggage.add(java.namesrv_addr, "java"))
        finally:
            java.stop()

    def visit_kourou(*options: str) -> None:
        with Serving.start(store, *options) as serving:
            asyncio.run(luggage.assert_found(serving.namesrv))
            asyncio.run(luggage.add(serving.namesrv, "kourou"))
            _query(serving.namesrv, tmp_path, luggage)
            outcome = serving.stop()
        assert outcome.code == 0, outcome.err
        assert "index" not in outcome.err, "nothing of it had to be made again"
        checked = run_command("store", "check", str(store))
        assert checked.code == 0, checked.out + checked.err

    visit_java(is_first=True)
    extension = store / "consumequeue_ext" / TOPIC
    before = sum(1 for _ in extension.rglob("0*"))
    assert before > 0
    visit_kourou("--config", str(conf))
    rebuilt = run_command("store", "rebuild", str(store))
    assert rebuilt.code == 0, rebuilt.out + rebuilt.err
    visit_java(is_first=False)
    conf.write_text(DELAYS)
    visit_kourou("--config", str(conf))
    assert not (store / "consumequeue" / GONE).exists()
