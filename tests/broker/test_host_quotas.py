"""Clients of one host can fill only a share of each table; administrators have no limit."""

from __future__ import annotations

import asyncio

import pytest

from kourou.broker.host_quotas import HostQuota
from kourou.model.group import ConsumeFromWhere, ConsumeType, MessageModel
from kourou.model.subscription import SubscriptionData
from kourou.model.sysflag import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION
from kourou.model.topic import TopicConfig
from kourou.protocol.clients import ConsumerData, HeartbeatData, encode_heartbeat
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.groups import GetSubscriptionGroupConfigRequestHeader
from kourou.protocol.offsets import CloneGroupOffsetRequestHeader, UpdateConsumerOffsetRequestHeader
from kourou.protocol.queue_assignment import (
    MessageRequestMode,
    SetMessageRequestMode,
    encode_message_request_mode,
)
from kourou.protocol.sending import ConsumerSendMsgBackRequestHeader
from kourou.remoting.dispatch import Handler
from kourou.testing.peers import FakePeer
from kourou.testing.send_rig import SendRig, message, run_sends
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker, small_config


def heartbeat(broker: SimulatedBroker, peer: FakePeer, group: str, expression: str = "*") -> None:
    kind = "TAG" if expression == "*" else "SQL92"
    wanted = SubscriptionData("T", expression, sub_version=1, expression_type=kind)
    data = ConsumerData(
        group,
        ConsumeType.PASSIVELY,
        MessageModel.CLUSTERING,
        ConsumeFromWhere.LAST_OFFSET,
        (wanted,),
    )
    body = encode_heartbeat(HeartbeatData("c", (), (data,)))
    peer.ask(broker.client_handlers.on_heartbeat, peer.request(RequestCode.HEART_BEAT, body=body))


def commit(broker: SimulatedBroker, peer: FakePeer, group: str, topic: str) -> RemotingCommand:
    header = UpdateConsumerOffsetRequestHeader(group, topic, 0, 0)
    asked = peer.request(RequestCode.UPDATE_CONSUMER_OFFSET, header)
    answer = peer.ask(broker.offset_handlers.on_update_consumer_offset, asked)
    assert answer is not None
    return answer


def test_removing_an_entry_frees_its_share() -> None:
    quota = HostQuota(10)
    quota.add("a", "host", 6)
    assert quota.has_room("host", 4)
    assert not quota.has_room("host", 5)
    assert quota.has_room("other", 10)
    assert quota.has_room(None, 100), "administrators have no share"

    quota.add("a", "host", 10)  # replaces the former entry
    assert not quota.has_room("host")
    quota.remove("a")
    quota.remove("a")
    quota.remove("never made")
    assert quota.has_room("host", 10)


def test_topics_created_by_sends_are_limited_per_host(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(bench: SendRig) -> None:
        topics = bench.broker.topics
        for number in range(2):
            assert (await bench.send(topic=f"made-{number}")).code == 0
        refused = await bench.send(topic="made-2")
        assert refused.code == 1
        assert "topic made-2 cannot be created: clients of 10.0.0.9 have created 2" in str(
            refused.remark
        )
        assert "clientSharePercent" in str(refused.remark)
        assert topics.get("made-2") is None
        assert (await bench.send(topic="made-1")).code == 0, "existing topics are not affected"

        other = FakePeer(address="10.0.0.10")
        asked = other.request_of(message(topic="made-3"))
        other.ask(bench.handlers.on_send_message, asked)
        await asyncio.sleep(1)
        assert other.sent[-1].code == 0

        topics.put(TopicConfig("by-request", 1, 1))
        topics.delete("made-0")
        assert (await bench.send(topic="made-2")).code == 0

    monkeypatch.setattr("kourou.broker.topics.TOPICS_MAX", 40)
    run_sends(test, client_share_percent=5)


def test_groups_created_by_heartbeats_and_pulls_are_limited_per_host(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        greedy, modest = FakePeer(), FakePeer(address="10.0.0.10")
        heartbeat(broker, greedy, "a")
        heartbeat(broker, greedy, "b")
        for _ in range(2):
            heartbeat(broker, greedy, "c")
        pulled = broker.pull(greedy, consumer_group="d")
        assert pulled is not None
        assert pulled.code == 26
        assert "clients of 10.0.0.9 have created 2" in str(pulled.remark)
        assert "clientSharePercent" in str(pulled.remark)
        assert commit(broker, greedy, "d", "T").code == 26
        assert [broker.groups.get(name) is None for name in "abcd"] == [False, False, True, True]
        assert broker.topics.get("%RETRY%c") is None

        heartbeat(broker, modest, "c")
        assert broker.groups.get("c") is not None
        heartbeat(broker, greedy, "c")
        live = broker.clients.consumer_group("c")
        assert live is not None
        assert len(live.members) == 2, "anyone may join a group that there is"

    monkeypatch.setattr("kourou.broker.tables.GROUPS_MAX", 40)
    run_with_broker(test, config=small_config(client_share_percent=5))
    assert "clients of 10.0.0.9 have created 2" in caplog.text


@pytest.mark.parametrize("way", ["read", "cloned", "retried", "given back", "mode"])
def test_groups_created_by_other_requests_are_limited_per_host(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def make(
        broker: SimulatedBroker, peer: FakePeer, group: str, physical_offset: int
    ) -> RemotingCommand:
        body = b""
        header: object = None
        handler: Handler
        if way == "read":
            header = GetSubscriptionGroupConfigRequestHeader(group)
            handler = broker.admin.groups.on_get_subscription_group_config
        elif way == "cloned":
            header = CloneGroupOffsetRequestHeader("source", group, "T", offline=True)
            handler = broker.admin.offsets.on_clone_group_offset
        elif way == "given back":
            header = ConsumerSendMsgBackRequestHeader(physical_offset, group, 1)
            handler = broker.send_backs.on_consumer_send_msg_back
        elif way == "mode":
            mode = SetMessageRequestMode("T", group, MessageRequestMode.PULL)
            body = encode_message_request_mode(mode)
            handler = broker.handlers.assignments.on_set_message_request_mode
        else:
            asked = peer.request_of(message(topic=f"%RETRY%{group}"))
            peer.ask(SendRig(broker).handlers.on_send_message, asked)
            await asyncio.sleep(1)
            return peer.sent[-1]
        peer.ask(handler, peer.request(0, header, body))
        await asyncio.sleep(1)
        return peer.sent[-1]

    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        [appended] = (await broker.store_messages([broker.draft()])).appended
        physical_offset = appended.physical_offset
        greedy, modest = FakePeer(), FakePeer(address="10.0.0.10")
        for group in "ab":
            assert (await make(broker, greedy, group, physical_offset)).code == 0
        refused = await make(broker, greedy, "c", physical_offset)
        assert refused.code == 26
        assert "clients of 10.0.0.9 have created 2" in str(refused.remark)
        assert broker.groups.get("c") is None
        assert broker.topics.get("%RETRY%c") is None
        assert (await make(broker, greedy, "b", physical_offset)).code == 0
        assert (await make(broker, modest, "c", physical_offset)).code == 0

    monkeypatch.setattr("kourou.broker.tables.GROUPS_MAX", 40)
    run_with_broker(test, config=small_config(client_share_percent=5))


def test_pairs_of_group_and_topic_are_limited_per_host(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(broker: SimulatedBroker) -> None:
        for name in ("T", "U", "V"):
            broker.topics.put(TopicConfig(name, 4, 4))
        greedy, modest = FakePeer(), FakePeer(address="10.0.0.10")
        assert commit(broker, greedy, "g", "T").code == 0
        flags = PULL_COMMIT_OFFSET | PULL_SUBSCRIPTION
        broker.pull(greedy, consumer_group="g", topic="U", sys_flag=flags)
        assert broker.offsets.query("g", "U", 0) == 0

        refused = commit(broker, greedy, "g", "V")
        assert refused.code == 2
        assert "group g cannot commit its first offset for topic V" in str(refused.remark)
        broker.pull(greedy, consumer_group="g", topic="V", sys_flag=flags)
        assert broker.offsets.query("g", "V", 0) is None
        assert commit(broker, greedy, "g", "T").code == 0
        assert commit(broker, modest, "g", "V").code == 0

        broker.offsets.remove_topic("T")
        assert commit(broker, greedy, "h", "V").code == 0

    monkeypatch.setattr("kourou.broker.tables.PAIRS_MAX", 40)
    run_with_broker(test, config=small_config(client_share_percent=5))


def test_pairs_of_group_and_topic_are_limited_over_all_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        for number in range(3):
            peer = FakePeer(address=f"10.0.1.{number}")
            answer = commit(broker, peer, f"g{number}", "T")
            assert answer.code == (0 if number < 2 else 2)
            assert number < 2 or "there are 2 already" in str(answer.remark)

    monkeypatch.setattr("kourou.broker.consuming.consumer_offsets.PAIRS_MAX", 2)
    run_with_broker(test)


def test_filter_expressions_are_limited_per_host(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4))
        greedy, modest = FakePeer(), FakePeer(address="10.0.0.10")
        heartbeat(broker, greedy, "a", "a = 111")
        heartbeat(broker, greedy, "b", "b = 2222")
        heartbeat(broker, modest, "c", "c = 3333")
        found = {group: broker.tables.filters.get("T", group) for group in "abc"}
        assert found["a"] is not None
        assert found["b"] is None
        assert found["c"] is not None

        broker.clients.unregister_consumer(greedy, "a")
        broker.tables.filters.unregister("a")
        heartbeat(broker, greedy, "b", "b = 2222")
        assert broker.tables.filters.get("T", "b") is not None, "what is dead makes room"

    monkeypatch.setattr("kourou.broker.tables.EXPRESSIONS_LENGTH_MAX", 20)
    run_with_broker(test, config=small_config(client_share_percent=50))
