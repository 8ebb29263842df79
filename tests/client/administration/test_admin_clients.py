"""Administration of connected clients: lists, and requests to consumers."""

from __future__ import annotations

import asyncio

import pytest

from kourou.errors import (
    ConsumerNotOnlineError,
    InvalidGroupError,
    InvalidMessageError,
    RemoteSystemError,
    TopicNotFoundError,
)
from kourou.model.group import ConsumeType, MessageModel
from kourou.model.message import MessageExt
from kourou.protocol.codes import LanguageCode
from kourou.protocol.running_info import ConsumeResult
from kourou.testing.cluster import Cluster
from kourou.testing.loop import run_virtual
from kourou.testing.recording import recording


def test_members_are_listed_once_with_their_subscriptions() -> None:
    async def main() -> None:
        async with recording(brokers=2) as w, w.cluster.admin() as admin:
            with pytest.raises(ConsumerNotOnlineError, match="consumers has no live member"):
                await admin.consumer_connection("consumers")
            named = [w.consumer(tags="eu || us", instance_name=name) for name in ("a", "b")]
            async with named[0] as one, named[1] as two:
                await asyncio.sleep(6)
                found = await admin.consumer_connection("consumers")
            ids = [member.client_id for member in found.connections]
            assert ids == sorted([one.client_id, two.client_id])
            assert {member.language for member in found.connections} == {LanguageCode.PYTHON}
            assert found.consume_type is ConsumeType.PASSIVELY
            assert found.message_model is MessageModel.CLUSTERING
            assert found.subscriptions["T"].sub_string == "eu || us"

    run_virtual(main())


def test_consumer_reports_its_queues_and_settings() -> None:
    async def main() -> None:
        async with recording(queues=2) as w, w.cluster.admin() as admin, w.consumer() as consumer:
            await w.send(b"1", b"2")
            await w.until_received(b"1", b"2")
            info = await admin.running_info("consumers", consumer.client_id)
            mine = [queue.queue_id for queue in sorted(info.queues) if queue.topic == "T"]
            assert mine == [0, 1]
            assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
            assert not info.jstack
            with_stack = await admin.running_info("consumers", consumer.client_id, stack=True)
            assert with_stack.jstack
            with pytest.raises(ConsumerNotOnlineError, match=rf"nobody.*{consumer.client_id}"):
                await admin.running_info("consumers", "nobody")
        async with Cluster(seed=2) as cluster, cluster.admin() as admin:
            with pytest.raises(ConsumerNotOnlineError, match="members are: none"):
                await admin.running_info("consumers", "nobody")

    run_virtual(main())


def test_message_is_delivered_again_on_request() -> None:
    async def main() -> None:
        async def listen(message: MessageExt) -> None:
            if len(w.deliveries) == 3:
                raise ValueError("not this time")

        async with recording(queues=1) as w, w.cluster.admin() as admin:
            async with w.consumer(listen) as consumer:
                await w.send(b"1")
                await w.until_received(b"1")
                msg_id = w.deliveries[0].offset_msg_id
                done = await admin.consume_directly("consumers", consumer.client_id, msg_id)
                assert done.consume_result is ConsumeResult.SUCCESS
                assert w.received == [b"1", b"1"]
                failed = await admin.consume_directly("consumers", consumer.client_id, msg_id)
                assert failed.consume_result is not ConsumeResult.SUCCESS
                assert "not this time" in (failed.remark or "")
                with pytest.raises(RemoteSystemError, match="not online"):
                    await admin.consume_directly("consumers", "nobody", msg_id)
                with pytest.raises(InvalidMessageError):
                    await admin.consume_directly("consumers", consumer.client_id, "xyz")
            assert await w.committed() == 1

    run_virtual(main())


def test_producers_are_listed_by_group_and_by_broker() -> None:
    async def main() -> None:
        async with recording(brokers=2) as w, w.cluster.admin() as admin:
            assert await admin.producer_connection("producers") == []
            async with w.cluster.producer() as producer:
                await producer.fetch_publish_message_queues("T")
                await asyncio.sleep(31)  # until after a heartbeat
                found = await admin.producer_connection("producers", "T")
                assert [one.client_id for one in found] == [producer.client_id]
                assert await admin.producer_connection("producers") == found
                host, port = w.cluster.broker_address(1)
                reported = await admin.producers(f"{host}:{port}")
                assert [one.client_id for one in reported["producers"]] == [producer.client_id]
            with pytest.raises(TopicNotFoundError, match="absent"):
                await admin.producer_connection("producers", "absent")

    run_virtual(main())


def test_invalid_group_name_is_refused() -> None:
    async def main() -> None:
        async with Cluster(seed=2) as cluster, cluster.admin() as admin:
            for ask in (admin.consumer_connection, admin.producer_connection, admin.group_config):
                with pytest.raises(InvalidGroupError):
                    await ask("a b")
            with pytest.raises(InvalidGroupError):
                await admin.running_info("a b", "c")
            with pytest.raises(InvalidGroupError):
                await admin.consume_directly("a b", "c", "d")

    run_virtual(main())
