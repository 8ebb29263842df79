"""Modes of groups, and the lag of revival, as an admin client sees them."""

from __future__ import annotations

import asyncio

import pytest

from kourou.client.administration.admin import GroupPops, ReviveLag, TopicMode
from kourou.client.consuming.consumer_config import SimpleConsumerConfig
from kourou.errors import InvalidGroupError
from kourou.model.group import ConsumeFromWhere, ConsumeType, MessageModel
from kourou.protocol.queue_assignment import MessageRequestMode
from kourou.testing.loop import run_virtual
from kourou.testing.recording import TOPIC, recording

FIRST = SimpleConsumerConfig(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)


def test_modes_and_members_of_a_group_are_described() -> None:
    async def main() -> None:
        async with recording(brokers=2) as w, w.cluster.admin() as admin:
            assert await admin.group_pops("g") == GroupPops(
                "g", revive_lags={name: ReviveLag(0, 0) for name in ("broker-0", "broker-1")}
            )
            await w.send(b"1", b"2")
            await admin.set_request_mode(TOPIC, "g", is_pop=True, share_queues=3)
            async with w.cluster.simple_consumer("g", FIRST) as consumer:
                consumer.subscribe(TOPIC)
                await consumer.receive()
                await asyncio.sleep(1)
                found = await admin.group_pops("g")
            assert found.consume_type is ConsumeType.POP
            assert found.message_model is MessageModel.CLUSTERING
            assert found.has_pop_mode
            assert found.modes == tuple(
                TopicMode(TOPIC, name, MessageRequestMode.POP, 3, is_set=True)
                for name in ("broker-0", "broker-1")
            )
            with pytest.raises(InvalidGroupError):
                await admin.group_pops("no group")

    run_virtual(main())


def test_topic_without_a_mode_has_the_default_of_its_broker() -> None:
    async def main() -> None:
        async with recording() as w, w.cluster.admin() as admin:
            await w.send(b"1")
            async with w.cluster.simple_consumer("g", FIRST) as consumer:
                consumer.subscribe(TOPIC)
                await consumer.receive()
                assert (await admin.group_pops("g")).modes == (
                    TopicMode(TOPIC, "broker-0", MessageRequestMode.PULL),
                )
                address = next(iter((await admin.cluster_info()).brokers.values())).broker_addrs[0]
                await admin.update_broker_config(address, {"defaultMessageRequestMode": "POP"})
                found = await admin.group_pops("g")
            assert found.modes == (TopicMode(TOPIC, "broker-0", MessageRequestMode.POP),)

    run_virtual(main())
