"""Tests of Kourou's administration and command line with the Java name server and broker 5.5.0."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from kourou import AdminClient, Message, Producer, SendReceipt
from kourou.client.administration.admin_topics import ORDER_TOPIC_CONFIG
from kourou.errors import QueryNotFoundError, TopicNotFoundError
from kourou.model.topic import PERM_READ
from kourou.testing.process import run_command
from tests.interop.peer import JavaServer


async def _send(namesrv_addr: str, topic: str, count: int) -> list[SendReceipt]:
    async with Producer("python-admin", namesrv_addr) as producer:
        return [
            await producer.send(
                Message(topic, b"body-%d" % number, keys=[f"k-{number % 2}"]), timeout_ms=15_000
            )
            for number in range(count)
        ]


def _command(server: JavaServer, *args: str) -> Any:
    done = run_command(*args, "--json", environ={"KOUROU_NAMESRV": server.namesrv_addr})
    assert (done.code, done.err) == (0, "")
    return json.loads(done.out)


def test_topic_is_created_changed_and_deleted_on_the_java_broker(java_server: JavaServer) -> None:
    async def main() -> None:
        async with AdminClient(java_server.namesrv_addr) as admin:
            await admin.create_topic(
                "AdminTopic", queues=4, attributes={"message.type": "FIFO"}, order=True
            )
            [(name, config)] = (await admin.topic_config("AdminTopic")).items()
            assert (config.read_queue_nums, config.write_queue_nums, config.order) == (4, 4, True)
            assert dict(config.attributes) == {"message.type": "FIFO"}
            assert await admin.kv_get(ORDER_TOPIC_CONFIG, "AdminTopic") == f"{name}:4"

            await admin.update_topic(
                "AdminTopic", write_queues=2, perm=PERM_READ, attributes={"message.type": None}
            )
            [config] = (await admin.topic_config("AdminTopic")).values()
            assert (config.read_queue_nums, config.write_queue_nums) == (4, 2)
            assert (config.perm, dict(config.attributes)) == (PERM_READ, {})
            assert config.order
            assert await admin.kv_get(ORDER_TOPIC_CONFIG, "AdminTopic") == f"{name}:2"
            assert await admin.topic_groups("AdminTopic") == []

            await admin.delete_topic("AdminTopic")
            with pytest.raises(TopicNotFoundError):
                await admin.topic_route("AdminTopic")
            with pytest.raises(QueryNotFoundError):
                await admin.kv_get(ORDER_TOPIC_CONFIG, "AdminTopic")

    asyncio.run(main())


def test_messages_are_found_in_the_java_broker(java_server: JavaServer) -> None:
    async def main() -> None:
        receipts = await _send(java_server.namesrv_addr, "AdminMessages", 6)
        async with AdminClient(java_server.namesrv_addr) as admin:
            last = receipts[5]
            found = await admin.message_by_unique_key("AdminMessages", last.msg_id)
            assert found.body == b"body-5"
            assert await admin.message_by_id(found.offset_msg_id) == found
            assert await admin.message_at(last.queue, last.queue_offset) == found
            odd = await admin.messages_by_key("AdminMessages", "k-1")
            assert [message.body for message in odd] == [b"body-1", b"body-3", b"body-5"]
            with pytest.raises(QueryNotFoundError):
                await admin.messages_by_key("AdminMessages", "k-9")
            with pytest.raises(QueryNotFoundError):
                await admin.message_by_unique_key("AdminMessages", last.msg_id[:-4] + "FFFF")

    asyncio.run(main())


def test_the_java_name_server_is_configured(java_server: JavaServer) -> None:
    async def main() -> None:
        async with AdminClient(java_server.namesrv_addr) as admin:
            [config] = (await admin.namesrv_config()).values()
            assert config["orderMessageEnable"] == "false"
            await admin.update_namesrv_config({"returnOrderTopicConfigToBroker": "false"})
            [config] = (await admin.namesrv_config()).values()
            assert config["returnOrderTopicConfigToBroker"] == "false"
            await admin.update_namesrv_config({"returnOrderTopicConfigToBroker": "true"})
            await admin.kv_put("kourou", "a", "1;2=3")
            assert await admin.kv_list("kourou") == {"a": "1;2=3"}
            await admin.kv_delete("kourou", "a")
            assert await admin.kv_list("nothing") == {}
            [name] = (await admin.cluster_info()).brokers
            wiped = await admin.wipe_write_perm(name)
            assert await admin.add_write_perm(name) == wiped

    asyncio.run(main())


def test_read_commands_work_with_a_java_cluster(java_server: JavaServer) -> None:
    receipts = asyncio.run(_send(java_server.namesrv_addr, "AdminShown", 4))

    [broker] = _command(java_server, "cluster", "list")
    assert broker["state"] == "ok"
    assert broker["version"] == "V5_5_0"
    assert broker["in_today"] >= 4
    listed = {row["topic"]: row["kind"] for row in _command(java_server, "topic", "list")}
    assert listed["AdminShown"] == "own"
    assert "TBW102" not in listed
    described = _command(java_server, "topic", "describe", "AdminShown")
    assert sum(queue["max_offset"] for queue in described["queues"]) == 4
    [holder] = _command(java_server, "topic", "route", "AdminShown")["brokers"]
    assert holder["addresses"] == {"0": broker["address"]}
    receipt = receipts[0]
    place = f"{receipt.queue.broker_name}/{receipt.queue.queue_id}@{receipt.queue_offset}"
    [shown] = _command(java_server, "message", "show", "AdminShown", receipt.msg_id)
    assert (shown["msg_id"], shown["body"]) == (receipt.msg_id, "body-0")
    for asked in (place, shown["offset_msg_id"]):
        assert _command(java_server, "message", "show", "AdminShown", asked) == [shown]
