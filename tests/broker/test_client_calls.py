"""Administrators' requests are forwarded to consumers on the consumers' own connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kourou.broker.clients import Peer
from kourou.errors import ConnectionLostError
from kourou.model.group import SubscriptionGroup
from kourou.model.msgid import encode_offset_msg_id
from kourou.model.queue import MessageQueue
from kourou.model.topic import TopicConfig
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.offsets import (
    ConsumerStatus,
    GetConsumerStatusRequestHeader,
    decode_consumer_status,
    encode_consumer_status,
)
from kourou.protocol.record.decode import decode_message
from kourou.protocol.running_info import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
)
from kourou.testing.peers import FakePeer
from kourou.testing.simulated_broker import BROKER, SimulatedBroker, run_with_broker

Golden = Callable[[str], tuple[RemotingCommand, RemotingCommand | None]]
STORED_AT = BROKER


class Asked:
    """Answers for all clients, and records their requests."""

    def __init__(self, broker: SimulatedBroker, answer: Callable[[RemotingCommand], Any]) -> None:
        self.commands: list[tuple[Peer, RemotingCommand]] = []
        self._answer = answer
        broker.answer_client = self

    def __call__(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        self.commands.append((peer, command))
        answer = self._answer(command)
        assert isinstance(answer, RemotingCommand)
        return answer


def ask_running(broker: SimulatedBroker, peer: FakePeer, client_id: str = "c@1") -> None:
    header = GetConsumerRunningInfoRequestHeader("g", client_id, jstack_enable=True)
    asked = peer.request(RequestCode.GET_CONSUMER_RUNNING_INFO, header)
    peer.ask(broker.admin.calls.on_get_consumer_running_info, asked)


def test_running_info_of_a_consumer_is_returned_to_the_administrator() -> None:
    async def test(broker: SimulatedBroker) -> None:
        member, admin = broker.connect("c@1"), FakePeer()
        broker.connect("other@1")
        asked = Asked(broker, lambda command: response(command, 0, "fine", body=b'{"mqTable":{}}'))

        ask_running(broker, admin)
        await broker.later.close()

        [(peer, command)] = asked.commands
        assert peer is member
        assert command.code == RequestCode.GET_CONSUMER_RUNNING_INFO
        assert command.ext_fields["jstackEnable"] == "true"
        [answer] = admin.sent
        assert (answer.code, answer.remark, answer.body) == (0, "fine", b'{"mqTable":{}}')
        assert answer.opaque == 1

    run_with_broker(test)


def test_the_error_of_a_consumer_is_returned_unchanged() -> None:
    async def test(broker: SimulatedBroker) -> None:
        admin = FakePeer()
        broker.connect("c@1")
        Asked(broker, lambda command: response(command, 1, "no such group here"))
        ask_running(broker, admin)
        await broker.later.close()
        assert (admin.sent[0].code, admin.sent[0].remark) == (1, "no such group here")

    run_with_broker(test)


def test_a_request_for_a_consumer_that_is_not_connected_is_refused_as_by_java(
    golden: Golden,
) -> None:
    _, java = golden("307_GET_CONSUMER_RUNNING_INFO_raw-running-info-offline_rc1")
    assert java is not None

    async def test(broker: SimulatedBroker) -> None:
        broker.connect("raw@1", "golden_hb_raw")
        header = GetConsumerRunningInfoRequestHeader("golden_hb_raw", "other@9")
        answer = await broker.ask(broker.admin.calls.on_get_consumer_running_info, header)
        assert (answer.code, answer.remark) == (java.code, java.remark)

    run_with_broker(test)


def test_a_consumer_that_does_not_answer_times_out_without_delaying_other_requests() -> None:
    async def test(broker: SimulatedBroker) -> None:
        silent, admin = broker.connect("c@1"), FakePeer()
        began_ms = broker.clock.now_ms()
        ask_running(broker, admin)
        assert admin.sent == []
        assert broker.pull(silent) is not None  # other requests are served meanwhile
        await broker.later.close()

        assert broker.clock.now_ms() - began_ms == 10_000
        assert admin.sent[0].code == 207
        assert (admin.sent[0].remark or "").startswith("consumer <g> <c@1> Timeout: ")

    run_with_broker(test)


def test_a_connection_that_closes_during_the_request_is_reported() -> None:
    async def test(broker: SimulatedBroker) -> None:
        def lose(_: RemotingCommand) -> None:
            raise ConnectionLostError("10.0.0.9:5 closed the connection")

        admin = FakePeer()
        broker.connect("c@1")
        Asked(broker, lose)
        ask_running(broker, admin)
        await broker.later.close()

        assert admin.sent[0].code == 1
        assert (admin.sent[0].remark or "").startswith("invoke consumer <g> <c@1> Exception: ")

    run_with_broker(test)


def test_a_consumer_whose_version_lacks_the_request_is_not_asked() -> None:
    async def test(broker: SimulatedBroker) -> None:
        admin = FakePeer()
        broker.connect("c@1", version=61)
        asked = Asked(broker, response)
        ask_running(broker, admin)
        assert admin.sent[0].code == 1
        assert "too low to finish" in (admin.sent[0].remark or "")
        assert asked.commands == []

    run_with_broker(test)


# Consume directly ----------------------------------------------------------------------------


async def consume(broker: SimulatedBroker, msg_id: str, client_id: str = "c@1") -> RemotingCommand:
    header = ConsumeMessageDirectlyResultRequestHeader("g", client_id, msg_id, "T")
    admin = FakePeer()
    asked = admin.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
    admin.ask(broker.admin.calls.on_consume_message_directly, asked)
    await broker.later.close()
    return admin.sent[0]


def test_a_message_is_sent_to_the_consumer_with_the_fields_that_java_adds() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.topics.put(TopicConfig("T", 4, 4, topic_sys_flag=2))
        broker.groups.put(SubscriptionGroup("g", group_sys_flag=1))
        await broker.store_messages([broker.draft(b"first")])
        stored = await broker.store_messages([broker.draft(b"hello")])
        broker.connect("c@1")
        asked = Asked(broker, lambda command: response(command, body=b'{"order":false}'))

        msg_id = encode_offset_msg_id(STORED_AT, stored.appended[0].physical_offset)
        answer = await consume(broker, msg_id)

        assert answer.body == b'{"order":false}'
        [(_, command)] = asked.commands
        assert command.code == RequestCode.CONSUME_MESSAGE_DIRECTLY
        assert command.ext_fields == {
            "consumerGroup": "g",
            "clientId": "c@1",
            "msgId": msg_id,
            "topic": "T",
            "brokerName": "broker-a",
            "topicSysFlag": "2",
            "groupSysFlag": "1",
        }
        assert decode_message(command.body).body == b"hello"

    run_with_broker(test)


@pytest.mark.parametrize(
    ("msg_id", "code", "text"),
    [
        ("nonsense", 29, "is not a valid offset message id"),
        (encode_offset_msg_id(STORED_AT, 999_999), 1, "can not find message by the offset, 999999"),
    ],
)
def test_a_message_that_does_not_exist_is_sent_to_no_consumer(
    msg_id: str, code: int, text: str
) -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.connect("c@1")
        asked = Asked(broker, response)
        answer = await consume(broker, msg_id)
        assert answer.code == code
        assert text in (answer.remark or "")
        assert asked.commands == []

    run_with_broker(test)


def test_a_message_for_a_consumer_that_is_not_connected_is_refused() -> None:
    async def test(broker: SimulatedBroker) -> None:
        answer = await consume(broker, encode_offset_msg_id(STORED_AT, 0))
        assert (answer.code, answer.remark) == (1, "The Consumer <g> <c@1> not online")

    run_with_broker(test)


# Status --------------------------------------------------------------------------------------


async def status(broker: SimulatedBroker, client_id: str | None = None) -> RemotingCommand:
    header = GetConsumerStatusRequestHeader("T", "g", client_id)
    return await broker.ask(broker.admin.calls.on_invoke_broker_to_get_consumer_status, header)


def test_all_members_or_one_member_are_asked_for_their_offsets() -> None:
    table = {MessageQueue("T", "broker-a", 0): 27}

    async def test(broker: SimulatedBroker) -> None:
        for client_id in ("a@1", "bb@1", "ccc@1"):
            broker.connect(client_id)

        def answer(command: RemotingCommand) -> RemotingCommand:
            assert command.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
            assert command.ext_fields == {"topic": "T", "group": "g"}
            if len(asked.commands) == 2:
                return response(command, 1, "not mine")
            return response(command, body=encode_consumer_status(ConsumerStatus(table)))

        asked = Asked(broker, answer)
        status_table = decode_consumer_status((await status(broker)).body)
        assert status_table.clients == {"a@1": table, "ccc@1": table}

        asked.commands.clear()
        one = decode_consumer_status((await status(broker, "bb@1")).body)
        assert one.clients == {"bb@1": table}
        assert len(asked.commands) == 1

    run_with_broker(test)


def test_members_that_do_not_answer_are_left_out_after_one_time_out() -> None:
    async def test(broker: SimulatedBroker) -> None:
        for client_id in ("a@1", "bb@1"):
            broker.connect(client_id)
        began_ms = broker.clock.now_ms()
        answer = await status(broker)
        assert decode_consumer_status(answer.body).clients == {}
        assert broker.clock.now_ms() - began_ms == 5_000

    run_with_broker(test)


def test_a_member_with_an_unusable_answer_is_left_out() -> None:
    async def test(broker: SimulatedBroker) -> None:
        broker.connect("a@1")
        Asked(broker, lambda command: response(command, body=b"nonsense"))
        assert decode_consumer_status((await status(broker)).body).clients == {}

    run_with_broker(test)


def test_the_status_of_a_group_without_members_is_refused() -> None:
    async def test(broker: SimulatedBroker) -> None:
        answer = await status(broker)
        assert answer.code == 1
        assert answer.remark == "No Any Consumer online in the consumer group: [g]"

    run_with_broker(test)
