"""Messages found by position, id, key and tag."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kourou.client.administration.admin import AdminClient
from kourou.client.administration.admin_calls import Server
from kourou.client.send_receipt import SendReceipt
from kourou.errors import (
    ConnectFailedError,
    InvalidMessageError,
    QueryNotFoundError,
    TopicNotFoundError,
    UsageError,
)
from kourou.model.message import Message, MessageExt
from kourou.model.msgid import encode_offset_msg_id
from kourou.model.queue import MessageQueue
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.pulling import QueryMessageRequestHeader
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual

Body = Callable[[Cluster, AdminClient, list[SendReceipt]], Coroutine[Any, Any, None]]


def with_messages(body: Body) -> None:
    """Run `body` with four messages, two on each of two brokers."""

    async def main() -> None:
        async with Cluster(seed=7, brokers=2) as cluster, cluster.admin() as admin:
            await admin.create_topic("orders", queues=1)
            async with cluster.producer() as producer:
                receipts = [
                    await producer.send(Message("orders", b"%d" % n, keys=[f"o-{n}"]))
                    for n in range(4)
                ]
            await body(cluster, admin, receipts)

    run_virtual(main())


def position(message: MessageExt) -> tuple[str, int, int]:
    return message.broker_name, message.queue_id, message.queue_offset


def test_message_is_found_by_its_unique_id() -> None:
    async def body(_: Cluster, admin: AdminClient, receipts: list[SendReceipt]) -> None:
        for number, receipt in enumerate(receipts):
            found = await admin.message_by_unique_key("orders", receipt.msg_id)
            assert found.body == b"%d" % number
            assert position(found) == (
                receipt.queue.broker_name,
                receipt.queue.queue_id,
                receipt.queue_offset,
            )
            assert await admin.messages_by_unique_key("orders", receipt.msg_id) == [found]
        other = receipts[0].msg_id[:-4] + "FFFF"
        with pytest.raises(QueryNotFoundError, match=f"orders was found by the id {other}"):
            await admin.message_by_unique_key("orders", other)
        with pytest.raises(TopicNotFoundError, match="absent"):
            await admin.message_by_unique_key("absent", receipts[0].msg_id)

    with_messages(body)


def test_message_is_found_by_its_offset_id() -> None:
    async def body(_: Cluster, admin: AdminClient, receipts: list[SendReceipt]) -> None:
        by_key = await admin.message_by_unique_key("orders", receipts[2].msg_id)
        found = await admin.message_by_id(by_key.offset_msg_id)
        assert found == by_key
        nowhere = encode_offset_msg_id(by_key.store_host, 10**12)
        with pytest.raises(QueryNotFoundError, match=r"127\.0\.0\.1:10\d+: can not find message"):
            await admin.message_by_id(nowhere)
        with pytest.raises(ConnectFailedError, match=r"127\.0\.0\.1:9"):
            await admin.message_by_id(encode_offset_msg_id(("127.0.0.1", 9), 0))
        with pytest.raises(InvalidMessageError, match="'o-17'"):
            await admin.message_by_id("o-17")

    with_messages(body)


def test_message_is_found_by_offset_or_the_range_is_reported() -> None:
    async def body(_: Cluster, admin: AdminClient, receipts: list[SendReceipt]) -> None:
        queue = receipts[3].queue
        found = await admin.message_at(queue, receipts[3].queue_offset)
        assert (found.body, position(found)[0]) == (b"3", queue.broker_name)
        with pytest.raises(QueryNotFoundError, match=r"has no offset 9: it has 0 to 1"):
            await admin.message_at(queue, 9)
        with pytest.raises(UsageError, match="-1 is negative"):
            await admin.message_at(queue, -1)
        with pytest.raises(TopicNotFoundError, match="not on broker-7, but on: broker-0, broker-1"):
            await admin.message_at(MessageQueue("orders", "broker-7", 0), 0)
        await admin.create_topic("empty", queues=1)
        with pytest.raises(QueryNotFoundError, match="it is empty, and its next offset is 0"):
            await admin.message_at(MessageQueue("empty", "broker-0", 0), 0)

    with_messages(body)


def test_unknown_key_and_tag_are_reported() -> None:
    async def body(_: Cluster, admin: AdminClient, __: list[SendReceipt]) -> None:
        with pytest.raises(QueryNotFoundError, match="found by the key o-x: can not find"):
            await admin.messages_by_key("orders", "o-x")
        with pytest.raises(QueryNotFoundError, match="found by the tag o-x: can not find"):
            await admin.messages_by_tag("orders", "o-x")
        with pytest.raises(UsageError, match="at least 1"):
            await admin.messages_by_key("orders", "o-1", max_messages=0)

    with_messages(body)


class _Indexed:
    """Brokers whose index returns all messages, as with colliding hashes."""

    namespace = ""

    def __init__(self, records: dict[str, bytes]) -> None:
        self.records = records
        self.asked: list[QueryMessageRequestHeader] = []

    async def request(
        self, address: str, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        assert timeout_s == 1.0
        self.asked.append(command.header(QueryMessageRequestHeader))
        return response(command, body=self.records[address])


def test_index_results_are_checked_by_key_and_sorted_by_time() -> None:
    async def body(cluster: Cluster, _: AdminClient, receipts: list[SendReceipt]) -> None:
        async with cluster.pull_consumer() as consumer:
            pulled = [await consumer.pull(receipt.queue, 0) for receipt in receipts[:2]]
        brokers = _Indexed({one.queue.broker_name: bytes(one.raw) for one in pulled})

        class IndexedAdmin(AdminClient):
            async def _topic_masters(self, topic: str) -> dict[str, Server]:
                assert topic == "orders"
                return {
                    name: Server(brokers, name, 1.0)  # type: ignore[arg-type]
                    for name in sorted(brokers.records, reverse=True)
                }

        async with IndexedAdmin(cluster.namesrv_addr, runtime=cluster.runtime) as admin:
            [found] = await admin.messages_by_key(
                "orders", "o-2", begin_ms=5, end_ms=9, max_messages=3
            )
            assert (found.body, found.broker_name) == (b"2", receipts[2].queue.broker_name)
            asked = {(one.begin_timestamp, one.end_timestamp, one.max_num) for one in brokers.asked}
            assert asked == {(5, 9, 3)}
            with pytest.raises(QueryNotFoundError, match="has the key o-9"):
                await admin.messages_by_key("orders", "o-9")

    with_messages(body)
