"""Clients register by heartbeats, list the members of groups, and are notified of changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, cast

import pytest

from kourou.broker.clients import CONSUMER_GROUPS_MAX, PRODUCER_GROUPS_MAX, Peer
from kourou.filter.tags import parse_tags
from kourou.model.group import (
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    SubscriptionGroup,
)
from kourou.model.subscription import SubscriptionData
from kourou.model.topic import TopicConfig
from kourou.protocol.clients import (
    CheckClientConfig,
    ConsumerData,
    GetConsumerListByGroupRequestHeader,
    HeartbeatData,
    UnregisterClientRequestHeader,
    decode_consumer_list,
    encode_check_client_config,
    encode_heartbeat,
)
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand
from kourou.testing.peers import FakePeer
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker, small_config

Golden = Callable[[str], tuple[RemotingCommand, RemotingCommand | None]]


def run(test: Callable[[SimulatedBroker], Coroutine[Any, Any, None]], **options: object) -> None:
    """Run `test` on a broker, as `run_with_broker` does."""
    run_with_broker(test, config=small_config(**options))


def consumer(client_id: str, group: str = "g", **fields: Any) -> HeartbeatData:
    data = ConsumerData(group, subscriptions=[parse_tags("T", "*", 1)])
    return HeartbeatData(client_id, ["p"], [replace(data, **fields)])


def heartbeat(broker: SimulatedBroker, peer: FakePeer, data: HeartbeatData) -> RemotingCommand:
    asked = peer.request(RequestCode.HEART_BEAT, body=encode_heartbeat(data))
    answer = peer.ask(broker.client_handlers.on_heartbeat, asked)
    assert answer is not None
    return answer


def consumers(broker: SimulatedBroker, group: str = "g") -> list[str] | int:
    """Return the client ids of the group, or the code of the refusal."""
    peer = FakePeer(1)
    header = GetConsumerListByGroupRequestHeader(group)
    asked = peer.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
    answer = peer.ask(broker.client_handlers.on_get_consumer_list_by_group, asked)
    assert answer is not None
    return answer.code or decode_consumer_list(answer.body)


def unregister(broker: SimulatedBroker, peer: FakePeer, client_id: str) -> RemotingCommand:
    header = UnregisterClientRequestHeader(client_id, producer_group="p", consumer_group="g")
    asked = peer.request(RequestCode.UNREGISTER_CLIENT, header)
    answer = peer.ask(broker.client_handlers.on_unregister_client, asked)
    assert answer is not None
    return answer


def notified(peer: FakePeer) -> list[str]:
    """Return the groups of which the client got notifications, and clear what it was sent."""
    notified = [
        command.ext_fields["consumerGroup"]
        for command in peer.sent
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED and not command.is_response
    ]
    assert all(command.is_oneway or command.is_response for command in peer.sent)
    peer.sent.clear()
    return notified


def test_a_group_whose_retry_topic_cannot_be_created_may_consume(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kourou.broker.topics.TOPICS_MAX", 1)

    async def test(broker: SimulatedBroker) -> None:
        assert heartbeat(broker, FakePeer(), consumer("a")).code == 0
        assert consumers(broker) == ["a"]
        assert broker.topics.get("%RETRY%g") is None

    run_with_broker(test)
    assert "retry_topic.refused reason=topic %RETRY%g cannot be created" in caplog.text


@pytest.mark.parametrize(
    "name",
    [
        "34_HEART_BEAT_push-concurrently",
        "34_HEART_BEAT_push-heartbeat-v2",
        "34_HEART_BEAT_push-sql92",
        "34_HEART_BEAT_send-sync",
    ],
)
def test_a_heartbeat_is_answered_as_by_java(golden: Golden, name: str) -> None:
    recorded, expected = golden(name)
    assert expected is not None

    async def test(broker: SimulatedBroker) -> None:
        peer = FakePeer()
        answer = peer.ask(broker.client_handlers.on_heartbeat, peer.request_of(recorded))
        assert answer is not None
        assert (answer.code, answer.remark) == (expected.code, expected.remark)
        assert answer.ext_fields == expected.ext_fields

    run(test)


def test_a_short_heartbeat_after_a_restart_is_answered_with_a_request_for_a_full_one(
    golden: Golden,
) -> None:
    whole, _ = golden("34_HEART_BEAT_push-heartbeat-v2")
    short, expected = golden("34_HEART_BEAT_push-heartbeat-v2_2")
    assert expected is not None

    async def test(broker: SimulatedBroker) -> None:
        peer = FakePeer()

        def answer_to(recorded: RemotingCommand) -> dict[str, str]:
            answer = peer.ask(broker.client_handlers.on_heartbeat, peer.request_of(recorded))
            assert answer is not None
            return answer.ext_fields

        # Java says false here, and refuses the client's pulls from then on.
        assert answer_to(short)["IS_SUB_CHANGE"] == "true"
        answer_to(whole)
        assert answer_to(short) == expected.ext_fields
        assert broker.clients.subscription("golden_hb2", "GoldenHb2") is not None

    run(test)


def test_members_are_notified_when_another_joins_or_leaves() -> None:
    async def test(broker: SimulatedBroker) -> None:
        first, second = FakePeer(1), FakePeer(2)

        heartbeat(broker, first, consumer("a"))
        assert consumers(broker) == ["a"]
        assert notified(first) == ["g"]
        heartbeat(broker, second, consumer("b"))
        assert consumers(broker) == ["a", "b"]
        assert (notified(first), notified(second)) == (["g"], ["g"])
        heartbeat(broker, first, consumer("a"))
        assert (notified(first), notified(second)) == ([], [])

        assert unregister(broker, second, "b").code == 0
        assert consumers(broker) == ["a"]
        assert (notified(first), notified(second)) == (["g"], [])
        unregister(broker, first, "a")
        assert consumers(broker) == 1

    run(test)


def test_members_are_notified_of_closed_and_expired_connections() -> None:
    async def test(broker: SimulatedBroker) -> None:
        first, second, third = FakePeer(1), FakePeer(2), FakePeer(3)
        for peer, client_id in ((first, "a"), (second, "b"), (third, "c")):
            heartbeat(broker, peer, consumer(client_id))
        notified(first)

        broker.clients.remove_connection(third)
        assert notified(first) == ["g"]
        await asyncio.sleep(100)
        heartbeat(broker, first, consumer("a"))
        await asyncio.sleep(25)
        broker.client_handlers.expire()

        assert notified(first) == ["g"]
        assert consumers(broker) == ["a"]
        assert second.closed_because is not None
        assert first.is_open

    run(test)


def test_changes_of_a_large_group_within_a_pause_are_announced_together() -> None:
    async def test(broker: SimulatedBroker) -> None:
        peers = [FakePeer(number) for number in range(100)]
        for number, peer in enumerate(peers):
            heartbeat(broker, peer, consumer(f"c{number}"))
        first = len(notified(peers[0]))

        await asyncio.sleep(0.1)

        assert first < 70  # each of the first 64 joins, and few of the others
        assert len(notified(peers[0])) <= 3
        heartbeat(broker, FakePeer(100), consumer("another"))  # the pause is over
        assert notified(peers[0]) == ["g"]
        heartbeat(broker, FakePeer(101), consumer("last"))
        assert notified(peers[0]) == []
        await asyncio.sleep(0.1)
        assert notified(peers[0]) == ["g"]

    run(test)


def test_members_of_a_broadcasting_group_are_not_notified() -> None:
    async def test(broker: SimulatedBroker) -> None:
        peer = FakePeer()
        heartbeat(broker, peer, consumer("a", message_model=MessageModel.BROADCASTING))
        assert notified(peer) == []

    run(test)


def test_member_changes_are_notified_in_batches_without_real_time_notification() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.live_config.update({"realTimeNotifyConsumerChange": "false"}, 0)
        notifier = broker.components.ids_notifier
        first, second = broker.connect("a"), broker.connect("bb")
        assert not first.sent
        notifier.flush()
        assert [command.code for command in first.sent + second.sent] == [40, 40]
        notifier.flush()
        assert len(first.sent) == 1, "nothing changed meanwhile"

        broker.connect("ccc")
        broker.live_config.update({"notifyConsumerIdsChangedEnable": "false"}, 0)
        notifier.flush()
        assert len(first.sent) == 1

    run_with_broker(test)


def test_a_group_can_switch_notifications_off() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.groups.put(SubscriptionGroup("g", notify_consumer_ids_changed_enable=False))
        peer = FakePeer()
        heartbeat(broker, peer, consumer("a"))
        assert notified(peer) == []

    run(test)


def test_a_consumer_gets_a_retry_topic_with_its_groups_queues() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.groups.put(SubscriptionGroup("g", retry_queue_nums=2))
        broker.groups.put(SubscriptionGroup("none", retry_queue_nums=0))
        heartbeat(broker, FakePeer(1), consumer("a"))
        heartbeat(broker, FakePeer(2), consumer("b", unit_mode=True, group="h"))
        heartbeat(broker, FakePeer(3), consumer("c", group="none"))

        assert broker.topics.get("%RETRY%g") == TopicConfig("%RETRY%g", 2, 2, 6)
        assert broker.topics.get("%RETRY%h") == TopicConfig("%RETRY%h", 1, 1, 6, topic_sys_flag=2)
        assert broker.topics.get("%RETRY%none") is None

    run(test)


def test_an_unknown_group_in_a_heartbeat_is_ignored_without_automatic_creation() -> None:
    async def test(broker: SimulatedBroker) -> None:
        peer = FakePeer()
        assert heartbeat(broker, peer, consumer("a")).code == 0
        assert consumers(broker) == 1
        assert broker.topics.get("%RETRY%g") is None
        assert len(broker.clients.producers("p")) == 1

    run(test, auto_create_subscription_group=False)


def test_a_malformed_heartbeat_is_refused() -> None:
    async def test(broker: SimulatedBroker) -> None:
        peer = FakePeer()
        asked = peer.request(RequestCode.HEART_BEAT, body=b"{")
        answer = peer.ask(broker.client_handlers.on_heartbeat, asked)
        assert answer is not None
        assert answer.code == 1

    run(test)


@pytest.mark.parametrize(
    ("kind", "expression", "is_on", "code"),
    [
        ("TAG", "a || b", False, 0),
        ("SQL92", "a = 1", False, 1),
        ("SQL92", "a = 1", True, 0),
        ("SQL92", "a >> 1", False, 1),
        ("SQL92", "a >> 1", True, 23),
        ("GROOVY", "a", True, 23),
    ],
)
def test_a_config_check_reports_whether_a_subscription_is_supported(
    kind: str, expression: str, code: int, *, is_on: bool
) -> None:
    async def test(broker: SimulatedBroker) -> None:
        peer = FakePeer()
        subscription = SubscriptionData("T", expression, expression_type=kind)
        body = encode_check_client_config(CheckClientConfig("c", "g", subscription))
        asked = peer.request(RequestCode.CHECK_CLIENT_CONFIG, body=body)
        answer = peer.ask(broker.client_handlers.on_check_client_config, asked)
        assert answer is not None
        assert answer.code == code

    run_with_broker(test, config=small_config(enable_property_filter=is_on))


@pytest.mark.parametrize(
    ("name", "is_on"),
    [
        ("46_CHECK_CLIENT_CONFIG_push-sql92", True),
        ("46_CHECK_CLIENT_CONFIG_push-sql92-bad-expression_rc23", True),
        ("46_CHECK_CLIENT_CONFIG_raw-check-client-config-ok", True),
        ("46_CHECK_CLIENT_CONFIG_raw-default-check-client-config-disabled_rc1", False),
    ],
)
def test_a_config_check_is_answered_as_by_java(golden: Golden, name: str, *, is_on: bool) -> None:
    recorded, expected = golden(name)
    assert expected is not None

    async def test(broker: SimulatedBroker) -> None:
        peer = FakePeer()
        asked = peer.request_of(recorded)
        answer = peer.ask(broker.client_handlers.on_check_client_config, asked)
        assert answer is not None
        assert answer.code == expected.code
        # The texts of errors in expressions differ from Java's.
        assert answer.remark == expected.remark or expected.code == 23

    run_with_broker(test, config=small_config(enable_property_filter=is_on))


def test_a_heartbeat_registers_filters_that_die_with_the_last_member(
    golden: Golden,
) -> None:
    recorded, _ = golden("34_HEART_BEAT_push-sql92_2")

    async def test(broker: SimulatedBroker) -> None:
        peer = FakePeer()
        peer.ask(broker.client_handlers.on_heartbeat, peer.request_of(recorded))

        one = broker.tables.filters.get("GoldenSql", "golden_sql")
        assert one is not None
        assert one.expression == "a between 0 and 2 AND color = 'red'"
        assert (one.client_version, one.is_dead) == (1795228450042, False)
        assert broker.tables.filters.get("%RETRY%golden_sql", "golden_sql") is None
        broker.clients.remove_connection(cast(Peer, peer))
        assert one.is_dead

    run_with_broker(test)


@pytest.mark.parametrize(
    ("kind", "most"), [("consumer", CONSUMER_GROUPS_MAX), ("producer", PRODUCER_GROUPS_MAX)]
)
def test_a_heartbeat_with_too_many_groups_is_refused_and_creates_none(kind: str, most: int) -> None:
    def body(count: int) -> bytes:
        names = [f"{kind}-{number}" for number in range(count)]
        consumers = [
            ConsumerData(
                name, ConsumeType.PASSIVELY, MessageModel.CLUSTERING, ConsumeFromWhere.LAST_OFFSET
            )
            for name in names
        ]
        if kind == "consumer":
            return encode_heartbeat(HeartbeatData("c", (), consumers))
        return encode_heartbeat(HeartbeatData("c", names))

    async def test(broker: SimulatedBroker) -> None:
        peer = FakePeer()
        on_heartbeat = broker.client_handlers.on_heartbeat
        before = len(broker.groups)
        answer = peer.ask(on_heartbeat, peer.request(34, body=body(most + 1)))
        assert answer is not None
        assert answer.code == 29
        assert f"is in {most + 1} {kind} groups; at most {most} are allowed" in str(answer.remark)
        assert len(broker.groups) == before
        assert not broker.clients.producer_groups()

        peer.ask(on_heartbeat, peer.request(34, body=body(most)))
        await broker.later.close()
        assert peer.sent[-1].code == 0

    run(test)


def test_a_heartbeat_that_created_a_retry_topic_is_answered_once_it_is_routed() -> None:
    async def test(broker: SimulatedBroker) -> None:
        routed = asyncio.Event()

        async def wait_announced() -> None:
            await routed.wait()

        broker.topics.is_announced, broker.topics.wait_announced = routed.is_set, wait_announced
        peer = FakePeer(1)
        asked = peer.request(RequestCode.HEART_BEAT, body=encode_heartbeat(consumer("a")))
        peer.ask(broker.client_handlers.on_heartbeat, asked)
        assert consumers(broker) == ["a"], "it is registered at once"
        assert not [sent for sent in peer.sent if sent.opaque == asked.command.opaque]
        second = FakePeer(2)
        assert heartbeat(broker, second, consumer("b")).code == 0, "which made none"
        routed.set()
        await broker.later.close()
        assert peer.sent[-1].opaque == asked.command.opaque
        assert peer.sent[-1].code == 0

    run(test)
