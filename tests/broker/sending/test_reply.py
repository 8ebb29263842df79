"""Replies are pushed to their requester, answered and stored as by Java's broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from kourou.broker.clients import Member, Peer
from kourou.broker.config import BrokerConfig
from kourou.model.message import MessageExt
from kourou.model.properties import decode_properties
from kourou.model.topic import reply_topic
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.record.decode import decode_messages
from kourou.store.message_store import GetRequest
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.peers import FakePeer
from kourou.testing.send_rig import JAVA_HOST
from kourou.testing.simulated_broker import SimulatedBroker

Golden = Callable[[str], tuple[RemotingCommand, RemotingCommand | None]]

REQUESTER = "127.0.0.1@inst-golden_requester"
REPLIES = reply_topic("DefaultCluster")


class ReplyRig:
    """A broker's replies on a simulated disk, and one producer that waits for them."""

    def __init__(self, config: BrokerConfig) -> None:
        self.broker = SimulatedBroker(SimDisk(), config=replace(config, advertise=JAVA_HOST))
        self.broker.answer_client = self._answer
        self.peer = FakePeer()
        self.requester = FakePeer(1)
        self.pushed: list[tuple[Peer, RemotingCommand]] = []
        self.code = 0
        self.handler = self.broker.handlers.replies

    def connect(self, client_id: str = REQUESTER) -> None:
        broker = self.broker
        broker.clients.register_producer(Member(client_id, self.requester, 0, 513, 0), "askers")

    async def ask(self, command: RemotingCommand) -> RemotingCommand:
        before = len(self.peer.sent)
        self.peer.ask(self.handler.on_send_reply_message, self.peer.request_of(command))
        await asyncio.sleep(12)
        (answer,) = self.peer.sent[before:]
        return answer

    def stored(self) -> list[MessageExt]:
        found = self.broker.store.reader.get(REPLIES, 0, GetRequest(0, 1000, 1 << 25, None))
        return decode_messages(found.body)

    def _answer(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        self.pushed.append((peer, command))
        return response(command, self.code, "no" if self.code else None)


def run_replies(
    test: Callable[[ReplyRig], Awaitable[None]],
    **options: Any,
) -> None:
    async def main() -> None:
        rig = ReplyRig(BrokerConfig(**options))
        await test(rig)
        rig.broker.flusher.release()
        await rig.broker.stop()

    run_virtual(main())


@pytest.mark.parametrize(
    ("sent", "handed_on"),
    [
        (
            "325_SEND_REPLY_MESSAGE_V2_request-reply",
            "326_PUSH_REPLY_MESSAGE_TO_CLIENT_request-reply",
        ),
        (
            "324_SEND_REPLY_MESSAGE_request-reply",
            "326_PUSH_REPLY_MESSAGE_TO_CLIENT_request-reply_2",
        ),
    ],
)
def test_the_requester_receives_the_same_push_as_from_java(
    golden: Golden, sent: str, handed_on: str
) -> None:
    request, expected = golden(sent)
    java, taken = golden(handed_on)
    assert expected is not None
    assert taken is not None

    async def test(rig: ReplyRig) -> None:
        rig.connect()
        host, _, port = java.ext_fields["bornHost"].partition(":")
        rig.peer.remote_address = (host, int(port))
        answer = await rig.ask(request)
        assert (answer.code, answer.remark) == (0, None)
        assert answer.ext_fields.keys() == expected.ext_fields.keys() | {"KOUROU_DURABILITY"}
        ((peer, ours),) = rig.pushed
        assert (peer, ours.code, ours.body) == (rig.requester, java.code, java.body)
        theirs = dict(java.ext_fields)
        pushed = dict(ours.ext_fields)
        for of_its_time in ("storeTimestamp", "properties"):
            assert pushed.pop(of_its_time)
            del theirs[of_its_time]
        assert pushed == theirs
        properties = decode_properties(ours.ext_fields["properties"].encode())
        java_properties = decode_properties(java.ext_fields["properties"].encode())
        assert properties.pop("PUSH_REPLY_TIME").isdigit()
        del java_properties["PUSH_REPLY_TIME"]
        assert properties == java_properties
        (stored,) = rig.stored()
        assert (stored.body, stored.properties) == (java.body, java_properties)

    run_replies(test)


@pytest.mark.parametrize("name", ["no-property", "no-requester"])
def test_an_undeliverable_reply_is_answered_as_by_java(golden: Golden, name: str) -> None:
    request, expected = golden(f"325_SEND_REPLY_MESSAGE_V2_raw-send-reply-{name}_rc1")
    assert expected is not None

    async def test(rig: ReplyRig) -> None:
        answer = await rig.ask(request)
        assert (answer.code, answer.remark) == (expected.code, expected.remark)
        assert answer.ext_fields.keys() == expected.ext_fields.keys()
        assert len(rig.stored()) == 1
        assert not rig.pushed

    run_replies(test)


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_reply_that_the_requester_does_not_accept_is_answered_with_an_error(
    golden: Golden, *, is_silent: bool
) -> None:
    request, _ = golden("325_SEND_REPLY_MESSAGE_V2_request-reply")

    async def test(rig: ReplyRig) -> None:
        rig.connect()
        rig.code = 1
        if is_silent:
            rig.broker.answer_client = None
        answer = await rig.ask(request)
        assert answer.code == 1
        assert answer.remark == f"push reply message to {REQUESTER}fail."
        assert len(rig.stored()) == 1

    run_replies(test)


def test_a_reply_is_pushed_although_the_disk_fails(golden: Golden) -> None:
    request, _ = golden("325_SEND_REPLY_MESSAGE_V2_request-reply")

    async def test(rig: ReplyRig) -> None:
        rig.connect()
        rig.broker.flusher.fail_next(OSError(5, "Input/output error"))
        answer = await rig.ask(request)
        assert (answer.code, answer.ext_fields["msgId"]) == (0, "0")
        assert len(rig.pushed) == 1

    run_replies(test)


def test_a_reply_without_a_queue_is_stored_in_one_of_its_topic_and_counted(golden: Golden) -> None:
    request, _ = golden("325_SEND_REPLY_MESSAGE_V2_request-reply")
    request.ext_fields |= {"e": "-1", "j": "2"}

    async def test(rig: ReplyRig) -> None:
        rig.connect()
        answer = await rig.ask(request)
        assert (answer.code, answer.ext_fields["queueId"]) == (0, "0")
        assert len(rig.stored()) == 1
        ((topic, (counted,)),) = rig.broker.stats.puts()
        assert (topic, counted.messages) == (REPLIES, 1)
        ((_, pushed),) = rig.pushed
        assert pushed.ext_fields["reconsumeTimes"] == "2"

    run_replies(test)


@pytest.mark.parametrize(("is_late", "durability"), [(False, "DISK"), (True, "MEMORY")])
def test_the_answer_to_a_stored_reply_has_its_durability(
    golden: Golden, durability: str, *, is_late: bool
) -> None:
    request, _ = golden("325_SEND_REPLY_MESSAGE_V2_request-reply")

    async def test(rig: ReplyRig) -> None:
        rig.connect()
        if is_late:
            rig.broker.flusher.stall()
        answer = await rig.ask(request)
        assert (answer.code, answer.ext_fields["KOUROU_DURABILITY"]) == (0, durability)

    run_replies(test)


def test_the_answer_to_a_reply_that_is_not_stored_has_no_message_id(golden: Golden) -> None:
    request, _ = golden("325_SEND_REPLY_MESSAGE_V2_request-reply")

    async def test(rig: ReplyRig) -> None:
        rig.connect()
        answer = await rig.ask(request)
        assert answer.code == 0
        assert {"msgId": "0", "queueId": "0", "queueOffset": "0"}.items() <= (
            answer.ext_fields.items()
        )
        assert rig.stored() == []

    run_replies(test, store_reply_message_enable=False)


def test_a_refused_reply_is_neither_pushed_nor_stored(golden: Golden) -> None:
    request, _ = golden("325_SEND_REPLY_MESSAGE_V2_request-reply")

    async def test(rig: ReplyRig) -> None:
        rig.connect()
        for fields, body, code in (
            ({"b": "bad topic"}, b"x", 29),
            ({"b": "SCHEDULE_TOPIC_XXXX"}, b"x", 16),
            ({"b": "Nowhere", "c": "Nowhere"}, b"x", 17),
            ({"e": "9"}, b"x", 29),
            ({"i": f"REPLY_TO_CLIENT\1{'c' * 32_760}\2"}, b"x", 13),
            ({"i": "TRAN_MSG\1true\2"}, b"x", 13),
            ({"i": "DELAY\0013\2"}, b"x", 13),
            ({"i": "TIMER_DELAY_SEC\0019\2"}, b"x", 13),
            ({"i": "TIMER_DELIVER_MS\1" + str(2**42) + "\2"}, b"x", 13),
            ({"b": "rmq_sys_wheel_timer"}, b"x", 16),
            ({"b": "%RETRY%nobody"}, b"x", 26),
            ({}, b"", 1),
            ({}, b"x" * (4 * 1024 * 1024 + 1), 13),
        ):
            request.ext_fields.update(fields)
            request.body = body
            answer = await rig.ask(request)
            assert answer.code == code, fields
            assert answer.remark
            request.ext_fields.update({"b": REPLIES, "c": "TBW102", "e": "0", "i": ""})
        assert not rig.pushed
        assert rig.stored() == []

    run_replies(test, auto_create_subscription_group=False)


def test_a_producer_is_found_by_client_id_while_one_of_its_groups_is_registered() -> None:
    async def test(rig: ReplyRig) -> None:
        clients = rig.broker.clients
        member = Member("c", rig.requester, 0, 513, 0)
        newer = Member("c", rig.peer, 0, 513, 0)
        clients.register_producer(member, "a")
        clients.register_producer(member, "b")
        clients.unregister_producer(rig.requester, "a")
        assert clients.producer("c") is member
        clients.register_producer(newer, "b")
        clients.unregister_producer(rig.requester, "b")
        assert clients.producer("c") is newer
        clients.register_producer(Member("d", rig.peer, 0, 513, 0), "b")
        assert clients.producer("c") is None
        clients.remove_connection(rig.peer)
        assert clients.producer("d") is None

    run_replies(test)
