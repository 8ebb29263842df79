"""Connections, groups and subscriptions are reported as by Java."""

from __future__ import annotations

from typing import cast

from kourou.broker.advertised import advertised_address
from kourou.broker.clients import Member, Peer
from kourou.broker.config import BrokerConfig
from kourou.protocol.codes import LanguageCode
from kourou.protocol.connections import (
    GetConsumerConnectionListRequestHeader,
    GetProducerConnectionListRequestHeader,
    ProducerInfo,
    QuerySubscriptionByConsumerRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    QueryTopicsByConsumerRequestHeader,
    decode_group_list,
    decode_group_subscription,
    decode_producer_connection,
    decode_producer_table,
)
from kourou.protocol.fastjson import loads
from kourou.remoting.steady_time import steady_ms
from kourou.testing.peers import FakePeer
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker, small_config


def test_connected_members_are_listed_with_their_subscriptions() -> None:
    async def test(broker: SimulatedBroker) -> None:
        read = broker.admin.clients.on_get_consumer_connection_list
        header = GetConsumerConnectionListRequestHeader("g")
        offline = await broker.ask(read, header)
        assert (offline.code, offline.remark) == (206, "the consumer group[g] not online")
        broker.connect("raw@1")

        answer = await broker.ask(read, header)

        assert loads(answer.body) == {
            "connectionSet": [
                {
                    "clientAddr": "10.0.0.9:50005",
                    "clientId": "raw@1",
                    "language": "JAVA",
                    "version": 513,
                }
            ],
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "subscriptionTable": {
                "T": {
                    "classFilterMode": False,
                    "codeSet": [],
                    "expressionType": "TAG",
                    "subString": "*",
                    "subVersion": 1,
                    "tagsSet": [],
                    "topic": "T",
                }
            },
        }

    run_with_broker(test)


def add_producer(broker: SimulatedBroker, client_id: str, group: str) -> None:
    peer = cast(Peer, FakePeer(40_001))
    broker.clients.register_producer(
        Member(client_id, peer, LanguageCode.GO, 401, steady_ms() - 1_000), group
    )


def test_connected_producers_are_listed_by_their_group() -> None:
    async def test(broker: SimulatedBroker) -> None:
        read = broker.admin.clients.on_get_producer_connection_list
        header = GetProducerConnectionListRequestHeader("p")
        offline = await broker.ask(read, header)
        assert (offline.code, offline.remark) == (1, "the producer group[p] not exist")
        add_producer(broker, "raw@1", "p")

        answer = await broker.ask(read, header)

        [found] = decode_producer_connection(answer.body)
        assert (found.client_id, found.client_addr) == ("raw@1", "10.0.0.9:40001")
        assert (found.language, found.version) == (LanguageCode.GO, 401)

    run_with_broker(test)


def test_all_producers_are_listed_with_the_time_of_their_last_heartbeat() -> None:
    async def test(broker: SimulatedBroker) -> None:
        add_producer(broker, "a@1", "p")
        add_producer(broker, "b@1", "q")

        answer = await broker.ask(broker.admin.clients.on_get_all_producer_info)

        seen_at_ms = broker.clock.now_ms() - 1_000
        assert decode_producer_table(answer.body) == {
            group: [ProducerInfo(client, "/10.0.0.9:40001", LanguageCode.GO, 401, seen_at_ms)]
            for group, client in (("p", "a@1"), ("q", "b@1"))
        }

    run_with_broker(test)


def test_the_groups_of_a_topic_are_those_that_subscribe_and_those_that_committed() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.connect("c", "live", topics=["T"])
        broker.connect("d", "elsewhere", topics=["U"])
        for group in ("offline", "live"):
            broker.offsets.commit(group, "T", 0, 0)

        header = QueryTopicConsumeByWhoRequestHeader("T")
        answer = await broker.ask(broker.admin.clients.on_query_topic_consume_by_who, header)

        assert decode_group_list(answer.body) == ["live", "offline"]

    run_with_broker(test)


def test_the_topics_of_a_group_are_those_in_which_it_committed() -> None:
    async def test(broker: SimulatedBroker) -> None:
        for topic in ("U", "T"):
            broker.offsets.commit("g", topic, 0, 0)
        broker.offsets.commit("h", "V", 0, 0)

        header = QueryTopicsByConsumerRequestHeader("g")
        answer = await broker.ask(broker.admin.clients.on_query_topics_by_consumer, header)

        assert loads(answer.body) == {"brokerAddr": "10.0.0.1:10911", "topicList": ["T", "U"]}

    run_with_broker(test)


def test_the_advertised_address_is_reported_if_configured() -> None:
    async def test(broker: SimulatedBroker) -> None:
        header = QueryTopicsByConsumerRequestHeader("g")
        answer = await broker.ask(broker.admin.clients.on_query_topics_by_consumer, header)
        assert loads(answer.body) == {"brokerAddr": "broker.example:10911", "topicList": []}

    run_with_broker(test, config=small_config(advertise="broker.example"))


def test_a_client_at_the_vip_port_gets_the_main_port() -> None:
    assert advertised_address(BrokerConfig(), ("10.0.0.1", 10909)) == "10.0.0.1:10911"
    assert advertised_address(BrokerConfig(port=0), ("10.0.0.1", 4711)) == "10.0.0.1:4711"


def test_the_subscription_of_a_group_is_reported_while_it_is_connected() -> None:
    async def test(broker: SimulatedBroker) -> None:
        read = broker.admin.clients.on_query_subscription_by_consumer
        header = QuerySubscriptionByConsumerRequestHeader("g", "T")
        assert (await broker.ask(read, header)).body == b'{"group":"g","topic":"T"}'
        broker.connect("c")

        found = decode_group_subscription((await broker.ask(read, header)).body)

        assert found.subscription is not None
        assert (found.subscription.topic, found.subscription.sub_string) == ("T", "*")

    run_with_broker(test)
