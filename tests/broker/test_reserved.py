"""Clients can neither move the broker's offsets nor consume messages that are not delivered yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kourou.broker.transactions.half_messages import GROUP
from kourou.model import topic as topics
from kourou.model.sysflag import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION
from kourou.model.topic import PENDING_TOPICS, SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.frame import encode_frame
from kourou.protocol.groups import DeleteSubscriptionGroupRequestHeader
from kourou.protocol.offsets import (
    CloneGroupOffsetRequestHeader,
    ResetOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from kourou.protocol.pulling import PullMessageRequestHeader, ViewMessageRequestHeader
from kourou.protocol.running_info import ConsumeMessageDirectlyResultRequestHeader
from kourou.protocol.sending import ConsumerSendMsgBackRequestHeader
from kourou.testing.lone_connection import LoneConnection
from kourou.testing.peers import FakePeer
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker
from tests.broker.pulling.test_fast_pull import fast_path
from tests.broker.timer.timer_rig import timer_draft
from tests.broker.transactions.transaction_rig import COMMIT, Half, TransactionRig, run

REFUSED = ResponseCode.NO_PERMISSION
OWN = [(GROUP, TRANS_HALF_TOPIC), (GROUP, "T"), ("CID_RMQ_SYS_new", "T"), ("g", TRANS_HALF_TOPIC)]


def commit(broker: SimulatedBroker, group: str, topic: str) -> tuple[Callable[..., Any], object]:
    return (
        broker.offset_handlers.on_update_consumer_offset,
        UpdateConsumerOffsetRequestHeader(group, topic, 0, 1),
    )


def reset(broker: SimulatedBroker, group: str, topic: str) -> tuple[Callable[..., Any], object]:
    header = ResetOffsetRequestHeader(
        topic, group, queue_id=0, offset=1, timestamp=0, is_force=True
    )
    return broker.admin.offsets.on_invoke_broker_to_reset_offset, header


def pull(broker: SimulatedBroker, group: str, topic: str) -> tuple[Callable[..., Any], object]:
    flags = PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET
    header = PullMessageRequestHeader(
        group, topic, 0, 0, 32, flags, 1, 0, sub_version=0, subscription="*", expression_type="TAG"
    )
    return broker.pulls.on_pull_message, header


async def answer(
    broker: SimulatedBroker, asked: tuple[Callable[..., Any], object]
) -> RemotingCommand:
    """Return the answer to a request, even if its handler raises."""
    handler, header = asked
    peer = FakePeer()
    peer.ask(handler, peer.request(0, header))
    await broker.later.close()
    return peer.sent[0]


@pytest.mark.parametrize("how", [commit, reset, pull])
@pytest.mark.parametrize(("group", "topic"), OWN)
def test_clients_cannot_move_the_offsets_of_the_broker(how: Any, group: str, topic: str) -> None:
    async def test(broker: SimulatedBroker) -> None:
        await broker.store_messages([broker.draft(b"1"), broker.draft(b"2")])
        for name in (GROUP, "g"):
            broker.groups.get_or_create(name)
        broker.offsets.commit(GROUP, TRANS_HALF_TOPIC, 0, 0)
        refused = await answer(broker, how(broker, group, topic))
        assert refused.code == REFUSED
        assert (group if group != "g" else topic) in (refused.remark or "")
        assert broker.offsets.query(GROUP, TRANS_HALF_TOPIC, 0) == 0
        assert broker.offsets.query(group, "T", 0) is None

    run_with_broker(test)


def test_cloning_or_deleting_a_group_does_not_affect_reserved_groups() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.groups.get_or_create("g")
        broker.offsets.commit("g", TRANS_HALF_TOPIC, 0, 7)
        broker.offsets.commit(GROUP, TRANS_HALF_TOPIC, 0, 3)
        offsets, groups = broker.admin.offsets, broker.admin.groups
        clone = CloneGroupOffsetRequestHeader("g", GROUP, TRANS_HALF_TOPIC, offline=True)
        refused = await answer(broker, (offsets.on_clone_group_offset, clone))
        assert refused.code == REFUSED
        delete = DeleteSubscriptionGroupRequestHeader(GROUP, clean_offset=True)
        refused = await answer(broker, (groups.on_delete_subscription_group, delete))
        assert refused.code == REFUSED
        assert broker.offsets.query(GROUP, TRANS_HALF_TOPIC, 0) == 3

    run_with_broker(test)


def test_open_transactions_survive_a_client_that_tries_to_settle_them() -> None:
    async def test(rig: TransactionRig) -> None:
        half = await rig.half()
        for topic in PENDING_TOPICS:
            rig.broker.topics.ensure(topics.TopicConfig(topic, 1, 1))
            assert (await answer(rig.broker, commit(rig.broker, GROUP, topic))).code == REFUSED
        producer = rig.connect()
        await rig.round(after_s=30)
        assert len(producer.sent) == 1
        assert (await rig.end(half, COMMIT)).code == 0

    run(test)


@pytest.mark.parametrize("topic", sorted(PENDING_TOPICS))
def test_waiting_topics_are_readable_only_by_the_tools_group(topic: str) -> None:
    async def test(broker: SimulatedBroker) -> None:
        assert (await answer(broker, pull(broker, "g", topic))).code == REFUSED
        tools = await answer(broker, pull(broker, topics.TOOLS_GROUP, topic))
        assert tools.code == ResponseCode.PULL_NOT_FOUND

    run_with_broker(test)


def test_a_refused_pull_is_refused_again_on_the_fast_path() -> None:
    async def test(broker: SimulatedBroker) -> None:
        lone = LoneConnection(
            {RequestCode.PULL_MESSAGE: broker.pulls.on_pull_message}, fast_path(broker)
        )
        for group, topic in OWN:
            _, header = pull(broker, group, topic)
            for _ in range(3):
                peer = FakePeer()
                frame = encode_frame(peer.request(RequestCode.PULL_MESSAGE, header).command)
                lone.receive_bytes(frame)
            await asyncio.sleep(0.1)
            assert [one.code for one in lone.sent()] == [REFUSED] * 3
            lone.transport.writes.clear()

    run_with_broker(test)


async def waiting(broker: SimulatedBroker) -> list[int]:
    """Store a delayed and a scheduled message, and return their physical offsets."""
    later = timer_draft(broker, b"timer", broker.clock.now_ms() + 60_000)
    drafts = [broker.draft(b"delayed", delay_level=5), later]
    stored = [(await broker.store_messages([one])).appended[0] for one in drafts]
    assert [one.topic for one in stored] == [SCHEDULE_TOPIC, TIMER_TOPIC]
    return [one.physical_offset for one in stored]


def view_by_id(broker: SimulatedBroker) -> Callable[..., Any]:
    return broker.handlers.queries.on_view_message_by_id


def give_back(broker: SimulatedBroker, offset: int, group: str = "g") -> tuple[Any, object]:
    header = ConsumerSendMsgBackRequestHeader(offset=offset, group=group, delay_level=0)
    return broker.send_backs.on_consumer_send_msg_back, header


def consume_directly(broker: SimulatedBroker, msg_id: str) -> tuple[Any, object]:
    header = ConsumeMessageDirectlyResultRequestHeader("g", "c@1", msg_id, "T")
    return broker.admin.calls.on_consume_message_directly, header


def test_no_consumer_gets_a_half_message() -> None:
    async def test(rig: TransactionRig) -> None:
        broker = rig.broker
        half: Half = await rig.half(b"secret")
        member = broker.connect("c@1", "g")
        for asked in (
            give_back(broker, half.physical_offset),
            consume_directly(broker, half.msg_id),
        ):
            refused = await answer(broker, asked)
            assert refused.code == REFUSED
            assert "is not delivered yet: it waits in topic" in (refused.remark or "")
        codes = [command.code for command in member.sent]
        assert RequestCode.CONSUME_MESSAGE_DIRECTLY not in codes
        assert "%RETRY%g" not in broker.store.reader.queues()
        assert SCHEDULE_TOPIC not in broker.store.reader.queues()

    run(test)


def test_no_consumer_gets_a_message_before_it_is_due() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.groups.get_or_create("g")
        for offset in await waiting(broker):
            assert (await answer(broker, give_back(broker, offset))).code == REFUSED
        [plain] = (await broker.store_messages([broker.draft(b"plain")])).appended
        for group, code in (("g", 0), (GROUP, REFUSED), ("CID_RMQ_SYS_new", REFUSED)):
            asked = give_back(broker, plain.physical_offset, group)
            assert (await answer(broker, asked)).code == code

    run_with_broker(test)


def test_a_half_message_is_shown_only_if_the_request_names_its_topic() -> None:
    async def test(rig: TransactionRig) -> None:
        half = await rig.half(b"secret")
        broker = rig.broker
        view = view_by_id(broker)
        for topic, code in ((None, REFUSED), ("T", REFUSED), (TRANS_HALF_TOPIC, 0)):
            header = ViewMessageRequestHeader(half.physical_offset, topic)
            assert (await answer(broker, (view, header))).code == code

    run(test)


def test_a_message_that_waits_for_a_time_is_shown_to_its_producer() -> None:
    async def test(broker: SimulatedBroker) -> None:
        for offset in await waiting(broker):
            view = view_by_id(broker)
            assert (await answer(broker, (view, ViewMessageRequestHeader(offset)))).code == 0

    run_with_broker(test)
