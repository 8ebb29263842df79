"""Clients of the proxy: settings, heartbeats, routes, termination, expiry, faults of calls."""

from __future__ import annotations

import asyncio
import logging

import pytest

from kourou.http2.grpc_messages import GrpcStatus
from kourou.model.group import SubscriptionGroup
from kourou.proxy.client_calls import COMMANDS_MAX, UNKNOWN_TOPICS_MAX
from kourou.proxy.clients import CLIENT_EXPIRY_S, SETTINGS_WAIT_S
from kourou.proxy.pb import v2
from kourou.proxy.pb.v2 import ClientType, Code
from kourou.proxy.server import STOP_S
from tests.proxy.proxy_rig import GROUP, PROXY, TOPIC, Mode, Rig, consumer_settings, with_rig

pytestmark = pytest.mark.usefixtures("each_mode")

PUSH = ClientType.PUSH_CONSUMER
EMPTY = (Code.MESSAGE_NOT_FOUND, "no new message")


class FailingMetadata:
    """Settings of topics and groups that cannot be read."""

    async def topic_type(self, topic: str) -> str:
        raise KeyError(topic)

    async def group(self, name: str) -> SubscriptionGroup | None:
        raise KeyError(name)

    def known_group(self, _: str) -> SubscriptionGroup | None:
        return None


def test_settings_are_answered_at_once_with_what_clients_require() -> None:
    async def test(rig: Rig) -> None:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        producer, consumer = await rig.producer(), await rig.consumer()
        assert loop.time() - started_s < 0.2
        assert producer.settings.backoff_policy.HasField("exponential_backoff")
        assert consumer.settings.backoff_policy.HasField("customized_backoff")
        assert consumer.settings.subscription.long_polling_timeout.seconds == 20
        assert consumer.settings.subscription.receive_batch_size == 32
        assert rig.registered(GROUP) == ["consumer@1"]

    with_rig(test)


def test_heartbeat_without_settings_is_refused() -> None:
    async def test(rig: Rig) -> None:
        stranger = await rig.connect("stranger")
        status = await stranger.heartbeat(PUSH)
        assert status.code == Code.UNRECOGNIZED_CLIENT_TYPE

    with_rig(test)


@pytest.mark.usefixtures("each_mode")
def test_a_receive_that_arrives_before_the_settings_waits_for_them() -> None:
    async def test(rig: Rig) -> None:
        consumer = await rig.connect("consumer@1")
        consumer.group = GROUP
        early = [consumer.receiving(invisible_ms=60_000) for _ in range(2)]
        await asyncio.sleep(SETTINGS_WAIT_S / 2)
        await consumer.settle(consumer_settings(PUSH, GROUP, TOPIC))
        for call in early:
            answers = await call.rest()
            assert answers[0].status.code == Code.MESSAGE_NOT_FOUND

    with_rig(test)


def test_the_wait_of_a_receive_does_not_depend_on_an_earlier_one() -> None:
    async def test(rig: Rig) -> None:
        consumer = await rig.connect("consumer@1")
        consumer.group = GROUP
        first = consumer.receiving(invisible_ms=60_000)
        await asyncio.sleep(SETTINGS_WAIT_S / 2)
        second = consumer.receiving(invisible_ms=60_000)
        assert (await first.rest())[0].status.code == Code.INTERNAL_SERVER_ERROR
        producer = await rig.producer()
        await producer.send()
        await consumer.settle(consumer_settings(PUSH, GROUP, TOPIC))
        settled_ms = rig.now_ms()
        await producer.send()
        assert len(await second.rest()) > 1
        assert rig.now_ms() - settled_ms < SETTINGS_WAIT_S * 1000 / 4

    with_rig(test)


def test_a_receive_without_settings_is_refused_after_a_short_wait() -> None:
    async def test(rig: Rig) -> None:
        stranger = await rig.connect("stranger")
        stranger.group = GROUP
        began_ms = rig.now_ms()
        answers = await stranger.receiving(invisible_ms=60_000).rest()
        assert answers[0].status.code == Code.INTERNAL_SERVER_ERROR
        assert "has sent no settings" in answers[0].status.message
        assert SETTINGS_WAIT_S * 1000 <= rig.now_ms() - began_ms < 1_000

    with_rig(test)


@pytest.mark.parametrize("kind", [ClientType.CLIENT_TYPE_UNSPECIFIED, 99])
def test_heartbeat_of_a_producer_needs_no_known_type(kind: ClientType) -> None:
    async def test(rig: Rig) -> None:
        producer = await rig.producer()
        assert (await producer.heartbeat(kind)).code == Code.OK

    with_rig(test)


def test_terminated_consumer_is_unregistered() -> None:
    async def test(rig: Rig) -> None:
        consumer = await rig.consumer()
        asked = v2.NotifyClientTerminationRequest(group=v2.Resource(name=GROUP))
        answer = await consumer.grpc.call("NotifyClientTermination", asked)
        assert answer.status.code == Code.OK
        assert rig.registered(GROUP) == []
        assert (await consumer.heartbeat(PUSH)).code == Code.UNRECOGNIZED_CLIENT_TYPE

    with_rig(test)


def test_silent_client_expires_and_an_active_one_does_not() -> None:
    async def test(rig: Rig) -> None:
        active = await rig.consumer(client_id="active")
        silent = await rig.consumer(client_id="silent")
        for _ in range(int(CLIENT_EXPIRY_S / 10) + 2):
            assert (await active.heartbeat(PUSH)).code == Code.OK
            await asyncio.sleep(10)
        assert rig.registered(GROUP) == ["active"]
        assert (await silent.heartbeat(PUSH)).code == Code.UNRECOGNIZED_CLIENT_TYPE

    with_rig(test)


def test_route_has_the_endpoints_by_which_the_client_reached_the_proxy() -> None:
    async def test(rig: Rig) -> None:
        client = await rig.connect("c")
        endpoints = v2.Endpoints(
            scheme=v2.AddressScheme.DOMAIN_NAME,
            addresses=[v2.Address(host="proxy.example", port=443)],
        )
        asked = v2.QueryRouteRequest(topic=v2.Resource(name=TOPIC), endpoints=endpoints)
        answer = await client.grpc.call("QueryRoute", asked)
        assert answer.message_queues[0].broker.endpoints == endpoints

    with_rig(test)


def test_advertised_address_replaces_the_endpoints() -> None:
    async def test(rig: Rig) -> None:
        client = await rig.connect("c")
        asked = v2.QueryRouteRequest(topic=v2.Resource(name=TOPIC))
        [queue] = (await client.grpc.call("QueryRoute", asked)).message_queues
        [address] = queue.broker.endpoints.addresses
        assert (address.host, address.port) == ("kourou.example", 8443)

    with_rig(test, advertised=("kourou.example", 8443))


def test_topic_that_does_not_exist_is_named_once_with_the_remedy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(rig: Rig) -> None:
        client = await rig.connect("c")
        for topic in ("Missing", "Missing", "%DLQ%billing"):
            asked = v2.QueryRouteRequest(topic=v2.Resource(name=topic))
            status = (await client.grpc.call("QueryRoute", asked)).status
            assert status.code == Code.TOPIC_NOT_FOUND
            refusals.append(status.message)

    refusals: list[str] = []
    with caplog.at_level(logging.WARNING):
        with_rig(test)
    remedy = "kourou topic create Missing --type normal|fifo|delay|transaction|priority"
    assert [remedy in text for text in refusals] == [True, True, False]
    logged = [record.getMessage() for record in caplog.records]
    assert logged == [f"topic.not_found topic=Missing reason={refusals[0]}"]


def test_number_of_missing_topics_in_the_log_is_limited(caplog: pytest.LogCaptureFixture) -> None:
    async def test(rig: Rig) -> None:
        client = await rig.connect("c")
        for number in range(UNKNOWN_TOPICS_MAX + 10):
            asked = v2.QueryRouteRequest(topic=v2.Resource(name=f"Missing-{number}"))
            await client.grpc.call("QueryRoute", asked)

    with caplog.at_level(logging.WARNING):
        with_rig(test)
    assert len(caplog.records) == UNKNOWN_TOPICS_MAX


def test_fault_of_a_handler_is_answered_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test(rig: Rig) -> None:
        client = await rig.connect("c")
        asked = v2.QueryRouteRequest(topic=v2.Resource(name=TOPIC))
        answer = await client.grpc.call("QueryRoute", asked)
        assert answer.status.code == Code.INTERNAL_SERVER_ERROR

    with caplog.at_level(logging.ERROR):
        with_rig(test, metadata=FailingMetadata())
    assert [record.getMessage() for record in caplog.records] == ["grpc_call.failed"]


def test_fault_of_settings_ends_the_stream_with_internal(caplog: pytest.LogCaptureFixture) -> None:
    async def test(rig: Rig) -> None:
        client = await rig.connect("c")
        subscription = v2.Subscription(group=v2.Resource(name=GROUP))
        stream = client.grpc.open("Telemetry", None)
        settings = v2.Settings(client_type=PUSH, subscription=subscription)
        stream.send(v2.TelemetryCommand(settings=settings))
        assert await stream.rest() == []
        assert stream.status is GrpcStatus.INTERNAL

    with caplog.at_level(logging.ERROR):
        with_rig(test, metadata=FailingMetadata())
    assert [record.getMessage() for record in caplog.records] == ["telemetry.failed client=c"]


def test_consumer_of_a_refused_group_is_unknown_afterwards() -> None:
    async def test(rig: Rig) -> None:
        client = await rig.connect("c")
        subscription = v2.Subscription(group=v2.Resource(name=GROUP))
        stream = client.grpc.open("Telemetry", None)
        settings = v2.Settings(client_type=PUSH, subscription=subscription)
        stream.send(v2.TelemetryCommand(settings=settings))
        assert await stream.rest() == []
        assert stream.status is GrpcStatus.INVALID_ARGUMENT
        await asyncio.sleep(0.1)
        assert (await client.heartbeat(PUSH)).code == Code.UNRECOGNIZED_CLIENT_TYPE
        assert rig.registered(GROUP) == []

    # In cluster mode, as in Java, the settings of an unknown group are answered.
    with_rig(test, mode=Mode.LOCAL, auto_create_subscription_group=False)


def test_client_that_reconnects_before_its_settings_are_answered_stays_known() -> None:
    async def test(rig: Rig) -> None:
        await rig.consumer(client_id="first")  # so that the proxy knows the route
        rig.network.stall(rig.broker.address)
        client = await rig.connect("c")
        lost = client.grpc.open("Telemetry", None)
        lost.send(v2.TelemetryCommand(settings=consumer_settings(PUSH, GROUP, TOPIC)))
        await asyncio.sleep(0.2)  # all within the wait for the broker
        back = await rig.connect("c")
        back.group = GROUP
        settling = asyncio.create_task(back.settle(consumer_settings(PUSH, GROUP, TOPIC)))
        await asyncio.sleep(0.2)
        client.grpc.close()
        await asyncio.sleep(0.2)
        rig.network.heal(rig.broker.address)
        await settling
        await asyncio.sleep(10)  # as SDKs between heartbeats
        assert (await back.heartbeat(PUSH)).code == Code.OK
        assert sorted(rig.registered(GROUP)) == ["c", "first"]
        assert await back.receive() == []

    with_rig(test, mode=Mode.CLUSTER)


def test_stream_without_a_client_id_leaves_no_task() -> None:
    async def test(rig: Rig) -> None:
        await rig.producer()
        client = await rig.connect("")
        before = len(asyncio.all_tasks())
        stream = client.grpc.open("Telemetry", None)
        stream.send(v2.TelemetryCommand(settings=v2.Settings()))
        [answer] = await stream.rest()
        assert answer.status.code == Code.CLIENT_ID_REQUIRED
        await asyncio.sleep(1)
        assert len(asyncio.all_tasks()) == before

    with_rig(test)


def test_client_that_does_not_wait_for_answers_to_settings_is_refused() -> None:
    async def test(rig: Rig) -> None:
        producer = await rig.producer()
        assert producer.stream is not None
        topic = v2.Resource(name=TOPIC)
        settings = v2.Settings(
            client_type=ClientType.PRODUCER, publishing=v2.Publishing(topics=[topic])
        )
        for _ in range(COMMANDS_MAX * 4):
            producer.stream.send(v2.TelemetryCommand(settings=settings))
        await producer.stream.rest()
        assert producer.stream.status is GrpcStatus.RESOURCE_EXHAUSTED

    with_rig(test)


def test_stop_ends_calls_that_wait_and_unregisters_clients() -> None:
    async def test(rig: Rig) -> None:
        consumer = await rig.consumer()
        call = consumer.receiving()
        await asyncio.sleep(1)
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        await rig.proxy.stop()
        status, ended = await call.rest()
        assert (status.status.code, status.status.message) == EMPTY
        assert ended.HasField("delivery_timestamp")
        assert call.status is GrpcStatus.OK
        assert consumer.stream is not None
        assert await consumer.stream.rest() == []
        assert consumer.stream.status is GrpcStatus.OK
        assert consumer.grpc.is_draining
        assert loop.time() - started_s < 0.5
        assert rig.registered(GROUP) == []

    with_rig(test)


def test_stop_waits_for_the_answer_of_a_call() -> None:
    async def test(rig: Rig) -> None:
        producer = await rig.producer()
        await producer.send(b"first")
        rig.network.stall(rig.broker.address)
        sending = asyncio.create_task(producer.send(b"last"))
        await asyncio.sleep(0.1)
        stopping = asyncio.create_task(rig.proxy.stop())
        await asyncio.sleep(0.5)
        rig.network.heal(rig.broker.address)
        assert (await sending).offset == 1
        await stopping

    with_rig(test, mode=Mode.CLUSTER)


def test_stop_does_not_wait_for_a_broker_that_does_not_answer() -> None:
    async def test(rig: Rig) -> None:
        producer = await rig.producer()
        await producer.send(b"first")
        rig.network.stall(rig.broker.address)
        sending = asyncio.create_task(producer.send(b"last"))
        await asyncio.sleep(0.1)
        started_s = asyncio.get_running_loop().time()
        await rig.proxy.stop()
        assert asyncio.get_running_loop().time() - started_s < STOP_S + 8
        rig.network.heal(rig.broker.address)
        await asyncio.gather(sending, return_exceptions=True)

    with_rig(test, mode=Mode.CLUSTER)


def test_proxy_listens_on_its_address() -> None:
    async def test(rig: Rig) -> None:
        assert rig.proxy.address == PROXY

    with_rig(test)
