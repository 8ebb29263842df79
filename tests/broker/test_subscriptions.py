"""The broker requests a newer subscription from its member at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

import pytest

from kourou.broker.clients import Peer
from kourou.errors import ConnectionLostError
from kourou.filter.tags import parse_tags
from kourou.model.subscription import SubscriptionData
from kourou.model.sysflag import PULL_SUSPEND
from kourou.protocol.clients import ConsumerData, HeartbeatData, encode_heartbeat
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.record.decode import decode_messages
from kourou.protocol.running_info import ConsumerRunningInfo, encode_consumer_running_info
from kourou.testing.peers import FakePeer
from kourou.testing.simulated_broker import SimulatedBroker, run_with_broker, small_config


class Consumer:
    """A member of group g that sends whole or short heartbeats, pulls, and says how it runs.

    Attributes:
        subscriptions: sent by heartbeats and in answers to the broker.
        asked: requests of the broker.
    """

    def __init__(
        self, broker: SimulatedBroker, *subscriptions: SubscriptionData, client_id: str = "c"
    ) -> None:
        self.subscriptions: Sequence[SubscriptionData] = subscriptions
        self.asked: list[RemotingCommand] = []
        self.peer = FakePeer(50_000 + len(client_id))
        self._parts = broker
        self._client_id = client_id
        self.answer: Callable[[], RemotingCommand] = self.running_info

    def heartbeat(self, *, without_sub: bool = False, version: int = 513) -> bool:
        """Send a heartbeat, and return whether the next has to be whole."""
        data = ConsumerData("g", subscriptions=() if without_sub else self.subscriptions)
        heartbeat_data = HeartbeatData(self._client_id, (), (data,), 7, without_sub=without_sub)
        asked = self.peer.request(RequestCode.HEART_BEAT, body=encode_heartbeat(heartbeat_data))
        asked.command.version = version
        answer = self.peer.ask(self._parts.client_handlers.on_heartbeat, asked)
        assert answer is not None
        assert answer.code == 0
        self.peer.sent.clear()
        return answer.ext_fields["IS_SUB_CHANGE"] == "true"

    def pull(self, version: int, **fields: Any) -> RemotingCommand | None:
        """Return the answer to a pull of its group; None if the pull is held."""
        return self._parts.pull(self.peer, **{"flags": 0, "sub_version": version} | fields)

    async def answer_to_pull(self, version: int) -> RemotingCommand:
        """Return the answer to a pull that is held until this member answers."""
        assert self.pull(version) is None
        await settle()
        return self.peer.sent[-1]

    def running_info(self) -> RemotingCommand:
        body = encode_consumer_running_info(ConsumerRunningInfo(subscriptions=self.subscriptions))
        return response(self.asked[-1], body=body)

    def is_asked(self, peer: Peer, command: RemotingCommand) -> RemotingCommand:
        """Answer requests of the broker."""
        assert cast(FakePeer, peer) is self.peer
        self.asked.append(command)
        return self.answer()


def run(test: Callable[[SimulatedBroker, Consumer], Coroutine[Any, Any, None]]) -> None:
    """Run `test` with a broker with two messages, and a member that subscribes to tag a."""

    async def with_consumer(broker: SimulatedBroker) -> None:
        for tag in ("a", "b"):
            await broker.store_messages([broker.draft(tag.encode(), tags=tag)])
        consumer = Consumer(broker, parse_tags("T", "a", 1))
        broker.answer_client = consumer.is_asked
        consumer.heartbeat()
        await test(broker, consumer)

    run_with_broker(with_consumer, config=small_config(enable_property_filter=True))


def bodies(answer: RemotingCommand | None) -> list[bytes]:
    assert answer is not None
    return [message.body for message in decode_messages(answer.body)]


async def settle() -> None:
    """Wait until requests are answered: the client answers within a turn of the loop."""
    for _ in range(3):
        await asyncio.sleep(0)


def test_a_pull_with_a_newer_subscription_is_served_after_the_member_answered() -> None:
    async def test(broker: SimulatedBroker, consumer: Consumer) -> None:
        # As Java's client does if a heartbeat is under way during a rebalance.
        consumer.subscriptions = [parse_tags("T", "a", 2)]
        assert not consumer.heartbeat(without_sub=True)

        assert bodies(await consumer.answer_to_pull(2)) == [b"a"]

        [asked] = consumer.asked
        assert asked.code == RequestCode.GET_CONSUMER_RUNNING_INFO
        assert asked.ext_fields == {
            "consumerGroup": "g", "clientId": "c", "jstackEnable": "false",
        }  # fmt: skip
        assert not consumer.heartbeat(without_sub=True)  # nothing else changed
        assert bodies(consumer.pull(2)) == [b"a"]

    run(test)


def test_the_answered_subscription_applies_to_the_member_and_its_group() -> None:
    async def test(broker: SimulatedBroker, consumer: Consumer) -> None:
        other = Consumer(broker, parse_tags("T", "a", 1), client_id="other")
        other.heartbeat()
        consumer.heartbeat()
        assert other.pull(1, flags=PULL_SUSPEND, queue_offset=2) is None
        await broker.store_messages([broker.draft(b"later", tags="b")])
        assert other.peer.sent == []
        consumer.subscriptions = [parse_tags("T", "b", 2)]

        assert bodies(await consumer.answer_to_pull(2)) == [b"b", b"later"]

        [answer] = other.peer.sent
        assert bodies(answer) == [b"later"]

    run(test)


def test_a_newer_property_filter_is_requested_from_the_member() -> None:
    async def test(broker: SimulatedBroker, consumer: Consumer) -> None:
        def sql_subscriptions(version: int) -> list[SubscriptionData]:
            text = "TAGS = 'b'"
            return [SubscriptionData("T", text, sub_version=version, expression_type="SQL92")]

        consumer.subscriptions = sql_subscriptions(3)
        consumer.heartbeat()
        live = broker.clients.consumer_group("g")
        assert live is not None
        consumer.subscriptions = sql_subscriptions(4)
        live.subscriptions["T"] = consumer.subscriptions[0]  # registered without its filter

        assert bodies(await consumer.answer_to_pull(4)) == [b"b"]

    run(test)


def test_a_member_is_asked_once_for_pulls_of_several_queues() -> None:
    async def test(broker: SimulatedBroker, consumer: Consumer) -> None:
        consumer.subscriptions = [parse_tags("T", "a", 2)]

        assert [consumer.pull(2, queue_id=queue_id) for queue_id in range(4)] == [None] * 4
        await settle()

        assert len(consumer.asked) == 1
        assert [answer.code for answer in consumer.peer.sent] == [0, 19, 19, 19]

    run(test)


def test_a_pull_of_a_client_outside_the_group_is_refused_without_a_request() -> None:
    async def test(broker: SimulatedBroker, consumer: Consumer) -> None:
        answer = broker.pull(FakePeer(9), flags=0, sub_version=2)
        assert answer is not None
        assert answer.code == 25
        await settle()
        assert consumer.asked == []

    run(test)


def test_a_pull_of_an_old_client_is_refused_without_a_request() -> None:
    async def test(broker: SimulatedBroker, consumer: Consumer) -> None:
        consumer.heartbeat(version=61)
        answer = consumer.pull(2)
        assert answer is not None
        assert answer.code == 25
        consumer.heartbeat(version=62)
        assert consumer.pull(2) is None
        await settle()
        assert len(consumer.asked) == 1

    run(test)


def lose() -> RemotingCommand:
    raise ConnectionLostError("10.0.0.9:50001 closed the connection")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda c: response(c.asked[-1], 1, "no such group here"), "no such group here"),
        (lambda c: response(c.asked[-1], body=b"\x00\xff"), "JSON"),
        (lambda c: response(c.asked[-1], body=b"{}"), "contains no subscription to topic T"),
        (lambda _: lose(), "closed the connection"),
    ],
)
def test_after_an_unusable_answer_the_pull_is_refused_and_the_next_pull_asks_again(
    answer: Callable[[Consumer], RemotingCommand], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(broker: SimulatedBroker, consumer: Consumer) -> None:
        caplog.set_level("INFO")
        consumer.answer = lambda: answer(consumer)
        consumer.subscriptions = [parse_tags("T", "a", 2)]
        assert (await consumer.answer_to_pull(2)).code == 25
        assert broker.clients.subscription("g", "T") == parse_tags("T", "a", 1)
        assert "subscription.not_told group=g client=c reason=" in caplog.text
        assert reason in caplog.text

        consumer.answer = consumer.running_info
        assert bodies(await consumer.answer_to_pull(2)) == [b"a"]

    run(test)


def test_a_pull_is_refused_if_the_member_answers_an_older_subscription() -> None:
    async def test(broker: SimulatedBroker, consumer: Consumer) -> None:
        assert (await consumer.answer_to_pull(2)).code == 25
        assert len(consumer.asked) == 1

    run(test)


def test_an_answer_of_a_member_that_left_does_not_register_it() -> None:
    async def test(broker: SimulatedBroker, consumer: Consumer) -> None:
        consumer.subscriptions = [parse_tags("T", "a", 2)]
        assert consumer.pull(2) is None
        broker.clients.remove_connection(cast(Peer, consumer.peer))
        await settle()
        assert len(consumer.asked) == 1
        assert broker.clients.consumer_group("g") is None

    run(test)


def test_a_pull_of_a_closed_connection_does_not_consume_an_offset_reset() -> None:
    async def test(broker: SimulatedBroker, consumer: Consumer) -> None:
        consumer.subscriptions = [parse_tags("T", "a", 2)]
        broker.offsets.reset("g", "T", 0, 1)
        assert consumer.pull(2) is None
        consumer.peer.close("lost")
        await settle()
        assert consumer.peer.sent == []
        assert broker.offsets.take_reset("g", "T", 0) == 1

    run(test)


def test_a_pull_is_refused_if_the_member_does_not_answer_for_three_seconds() -> None:
    async def test(broker: SimulatedBroker, consumer: Consumer) -> None:
        broker.answer_client = None
        began_ms = broker.clock.now_ms()
        assert consumer.pull(2) is None
        await asyncio.sleep(2.9)
        assert consumer.peer.sent == []
        await asyncio.sleep(0.2)
        assert [answer.code for answer in consumer.peer.sent] == [25]
        assert broker.clock.now_ms() - began_ms == 3100

    run(test)


def test_stop_does_not_wait_for_answers_of_members() -> None:
    async def test(broker: SimulatedBroker, consumer: Consumer) -> None:
        tasks = len(asyncio.all_tasks())
        broker.answer_client = None
        began_ms = broker.clock.now_ms()
        assert consumer.pull(2) is None
        await settle()
        broker.components.subscriptions.close()
        await settle()
        assert broker.clock.now_ms() == began_ms
        assert consumer.peer.sent == []
        assert len(asyncio.all_tasks()) == tasks

    run(test)


def of_group(broker: SimulatedBroker) -> tuple[str, int]:
    held = broker.clients.subscription("g", "T")
    assert held is not None
    return held.sub_string, held.sub_version


def test_an_older_subscription_applies_once_no_member_has_the_held_one() -> None:
    async def test(broker: SimulatedBroker, old: Consumer) -> None:
        old.subscriptions = [parse_tags("T", "a", 1_000)]
        old.heartbeat()
        behind = Consumer(broker, parse_tags("T", "b", 5), client_id="behind")
        behind.heartbeat()
        assert of_group(broker) == ("a", 1_000)

        broker.clients.remove_connection(cast(Peer, old.peer))
        assert behind.heartbeat(without_sub=True)  # it must send its subscriptions
        behind.heartbeat()
        assert of_group(broker) == ("b", 5)
        assert bodies(behind.pull(5)) == [b"b"]

    run(test)


def test_an_older_filter_applies_once_no_member_has_the_held_one() -> None:
    async def test(broker: SimulatedBroker, old: Consumer) -> None:
        for number in (1, 9):
            properties = {"a": str(number)}
            await broker.store_messages([broker.draft(b"%d" % number, properties=properties)])
        old.subscriptions = [
            SubscriptionData("T", "a > 5", sub_version=1_000, expression_type="SQL92")
        ]
        old.heartbeat()
        behind = Consumer(
            broker,
            SubscriptionData("T", "a < 5", sub_version=5, expression_type="SQL92"),
            client_id="behind",
        )
        broker.clients.remove_connection(cast(Peer, old.peer))
        behind.heartbeat()
        assert bodies(behind.pull(5, expression_type="SQL92")) == [b"1"]

    run(test)


def test_an_older_subscription_of_one_member_does_not_replace_a_newer_one_of_another() -> None:
    async def test(broker: SimulatedBroker, first: Consumer) -> None:
        first.subscriptions = [parse_tags("T", "a", 7)]
        first.heartbeat()
        other = Consumer(broker, parse_tags("T", "b", 6), client_id="other")
        other.heartbeat()
        first.heartbeat()
        other.heartbeat()
        assert of_group(broker) == ("a", 7)

    run(test)
