"""The broker registers with each name server independently of the others."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest

from kourou.model.route import TopicRoute
from kourou.model.topic import TopicConfig
from kourou.protocol.codes import RequestCode
from kourou.protocol.hashing import crc32
from kourou.protocol.kv_config import PutKVConfigRequestHeader
from kourou.protocol.routes import DeleteTopicFromNamesrvRequestHeader
from kourou.protocol.topic_table import (
    RegisterBody,
    UnregisterBrokerRequestHeader,
    decode_register_body,
    encode_register_body,
)
from kourou.remoting.connection import Connection
from kourou.testing.inspection import registration_of
from kourou.testing.loop import run_virtual
from kourou.testing.peers import FakePeer
from tests.registering import BOTH, FIRST, SECOND, World, now_s


def test_a_broker_registers_at_every_name_server_and_unregisters_on_stop() -> None:
    async def main() -> None:
        world = World()
        namesrvs = [await world.namesrv(FIRST), await world.namesrv(SECOND)]
        await world.broker.start()
        assert await world.has_route(FIRST)
        assert await world.has_route(SECOND)
        await world.broker.stop()
        assert not await world.has_route(FIRST)
        assert not await world.has_route(SECOND)
        await world.stop(*namesrvs)

    run_virtual(main())


@pytest.mark.parametrize("hangs", [False, True])
def test_a_name_server_that_is_down_or_hangs_does_not_delay_the_others(
    hangs: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        world = World()
        namesrv = await world.namesrv(SECOND)
        if hangs:
            world.network.stall(FIRST)
        started_s = now_s()
        await world.broker.start()
        assert now_s() - started_s <= 1
        assert await world.has_route(SECOND)
        await asyncio.sleep(60)
        stopping_s = now_s()
        await world.broker.stop()
        assert now_s() - stopping_s < 1
        await world.stop(namesrv)

    with caplog.at_level(logging.WARNING):
        run_virtual(main())
    failed = [r for r in caplog.records if r.getMessage().startswith("registration.failed")]
    assert len(failed) == 1, "a lasting failure is logged once"
    assert "127.0.0.1:9876" in failed[0].getMessage()


@pytest.mark.parametrize(("patience_ms", "is_known"), [(1_000, False), (30_000, True)])
def test_start_waits_for_a_late_name_server_up_to_the_given_time(
    patience_ms: int, *, is_known: bool
) -> None:
    async def main() -> None:
        world = World(latency_s=(0.4, 0.4))
        namesrv = await world.namesrv(FIRST)
        started_s = now_s()
        await world.broker.start(first_registration_ms=patience_ms)
        assert (now_s() - started_s > 1) == is_known
        assert (world.broker.unready_reasons() == []) == is_known
        await world.broker.stop()
        await world.stop(namesrv)

    run_virtual(main())


def test_a_broker_registers_at_a_name_server_that_starts_later() -> None:
    async def main() -> None:
        world = World()
        await world.broker.start()
        await asyncio.sleep(5)
        namesrv = await world.namesrv(FIRST)
        await asyncio.sleep(10)
        assert await world.has_route(FIRST)
        await world.stop(namesrv)

    run_virtual(main())


def test_a_broker_registers_at_a_restarted_name_server_within_seconds() -> None:
    async def main() -> None:
        world = World()
        namesrv = await world.namesrv(FIRST)
        await world.broker.start()
        namesrv.abandon()
        await asyncio.sleep(3)
        namesrv = await world.namesrv(FIRST)
        await asyncio.sleep(5)
        assert await world.has_route(FIRST)
        await world.stop(namesrv)

    run_virtual(main())


def test_an_internal_error_in_a_registration_is_logged_and_retried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes = iter([RuntimeError("a bug")])

    def checksum(body: bytes) -> int:
        for error in outcomes:
            raise error
        return crc32(body)

    monkeypatch.setattr("kourou.broker.registration.crc32", checksum)

    async def main() -> None:
        world = World(namesrv_addr=BOTH[:1])
        namesrv = await world.namesrv(FIRST)
        await world.broker.start()
        assert not await world.has_route(FIRST)
        await asyncio.sleep(2)
        assert await world.has_route(FIRST)
        await world.stop(namesrv)

    run_virtual(main())
    (warning,) = (record for record in caplog.records if record.levelname == "WARNING")
    assert "reason=a bug" in warning.getMessage()
    assert warning.exc_info


def test_a_new_topic_is_registered_at_once_and_many_share_one_registration() -> None:
    async def main() -> None:
        world = World()
        namesrv = await world.namesrv(FIRST)
        await world.broker.start()
        await asyncio.sleep(1)
        topics = world.topics
        for number in range(100):
            topics.put(TopicConfig(f"T{number}"))
        await asyncio.sleep(0.3)
        assert await world.has_route(FIRST, "T0")
        assert await world.has_route(FIRST, "T99")
        await world.stop(namesrv)

    run_virtual(main())


def test_consecutive_topic_creations_wait_briefly_for_their_routes() -> None:
    async def main() -> None:
        world = World()
        namesrvs = [await world.namesrv(FIRST), await world.namesrv(SECOND)]
        await world.broker.start()
        began_s = now_s()
        for number in range(100):
            world.topics.put(TopicConfig(f"T{number}"))
            await world.topics.persist_and_announce()
            assert await world.has_route(FIRST, f"T{number}")
        assert now_s() - began_s < 2
        await world.stop(*namesrvs)

    run_virtual(main())


def test_a_running_broker_stays_registered() -> None:
    async def main() -> None:
        world = World()
        namesrv = await world.namesrv(FIRST)
        await world.broker.start()
        await asyncio.sleep(600)
        assert await world.has_route(FIRST)
        world.broker.abandon()
        await asyncio.sleep(130)
        assert not await world.has_route(FIRST)
        await world.stop(namesrv)

    run_virtual(main())


@pytest.mark.parametrize(
    ("options", "address"),
    [
        ({"port": 10911}, "127.0.0.1:10911"),
        ({"port": 10911, "advertise": "10.1.2.3"}, "10.1.2.3:10911"),
        ({"port": 10911, "advertise": "broker.example:443"}, "broker.example:443"),
        ({"port": 10911, "listen": "::1"}, "[::1]:10911"),
    ],
)
def test_the_route_contains_an_address_that_clients_can_reach(
    options: dict[str, Any], address: str
) -> None:
    async def main() -> None:
        world = World(**options)
        namesrv = await world.namesrv(FIRST)
        await world.broker.start()
        (broker,) = (await world.route(FIRST)).broker_datas
        assert broker.broker_addrs == {0: address}
        await world.stop(namesrv)

    run_virtual(main())


async def route_by(world: World, host: str) -> TopicRoute:
    return await world.route((host, FIRST[1]))


def test_each_client_gets_the_broker_address_by_which_it_reached_a_local_name_server() -> None:
    async def main() -> None:
        world = World(namesrv_addr=BOTH[:1], port=10911, listen="0.0.0.0")  # noqa: S104 - simulated
        namesrv = await world.namesrv(("0.0.0.0", FIRST[1]))  # noqa: S104 - simulated
        await world.broker.start(is_namesrv_local=True)
        for host in ("127.0.0.1", "10.1.2.3", "192.0.2.4"):
            (broker,) = (await route_by(world, host)).broker_datas
            assert broker.broker_addrs == {0: f"{host}:10911"}
        await world.stop(namesrv)

    run_virtual(main())


def test_a_remote_name_server_gets_the_address_from_which_the_broker_connects() -> None:
    async def main() -> None:
        world = World(namesrv_addr=BOTH[:1], port=10911, listen="0.0.0.0")  # noqa: S104 - simulated
        await world.broker.start()
        registration = registration_of(world.broker)
        peer = FakePeer()
        peer.local_address = ("10.1.2.3", 40_000)
        assert registration.address_for(cast(Connection, peer)) == "10.1.2.3:10911"
        await world.stop()

    run_virtual(main())


def test_a_loopback_address_is_not_registered_at_a_remote_name_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        world = World(namesrv_addr=BOTH[:1], port=10911, listen="0.0.0.0")  # noqa: S104 - simulated
        namesrv = await world.namesrv(FIRST)
        await world.broker.start()
        assert not await world.has_route(FIRST)
        assert world.broker.unready_reasons() != []
        await world.stop(namesrv)

    run_virtual(main())
    (entry,) = [r.getMessage() for r in caplog.records if "registration.failed" in r.getMessage()]
    assert "listen is '0.0.0.0'" in entry
    assert "brokerIP1" in entry


def test_permissions_in_routes_are_restricted_to_those_of_the_broker() -> None:
    async def main() -> None:
        world = World(broker_permission=4)
        namesrv = await world.namesrv(FIRST)
        await world.broker.start()
        (queues,) = (await world.route(FIRST, "BenchmarkTest")).queue_datas
        assert queues.perm == 4
        await world.stop(namesrv)

    run_virtual(main())


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Collect the topics of each registration that a broker sends."""
    bodies: list[list[str]] = []

    def checksum(body: bytes) -> int:
        bodies.append(sorted(decode_register_body(body).table.topics))
        return crc32(body)

    monkeypatch.setattr("kourou.broker.registration.crc32", checksum)
    return bodies


def test_a_changed_topic_is_sent_alone_and_all_topics_once_after_it(sent: list[list[str]]) -> None:
    async def main() -> None:
        world = World(namesrv_addr=BOTH[:1])
        namesrv = await world.namesrv(FIRST)
        await world.broker.start()
        await asyncio.sleep(1)
        (first,) = sent
        world.topics.put(TopicConfig("New"))
        await asyncio.sleep(0.2)
        assert sent[1:] == [["New"]]
        assert await world.has_route(FIRST, "New")
        await asyncio.sleep(31)
        assert sent[2:] == [sorted([*first, "New"])]
        await asyncio.sleep(240)
        assert len(sent) == 3, "nothing changed: it is only asked"
        assert await world.has_route(FIRST, "New"), "it also renews the broker"
        await asyncio.sleep(90)
        assert len(sent) == 4, "but not for ever"
        await world.stop(namesrv)

    run_virtual(main())


def test_a_deletion_sends_nothing_until_all_topics_are_sent(sent: list[list[str]]) -> None:
    async def main() -> None:
        world = World(namesrv_addr=BOTH[:1])
        namesrv = await world.namesrv(FIRST)
        await world.broker.start()
        world.topics.put(TopicConfig("New"))
        await asyncio.sleep(1)
        world.topics.delete("New")
        await asyncio.sleep(1)
        assert len(sent) == 2
        await asyncio.sleep(30)
        assert "New" not in sent[-1]
        assert len(sent) == 3
        await world.stop(namesrv)

    run_virtual(main())


def test_a_name_server_that_lost_the_broker_is_sent_all_topics(sent: list[list[str]]) -> None:
    async def main() -> None:
        world = World(namesrv_addr=BOTH[:1], port=10911)
        namesrv = await world.namesrv(FIRST)
        await world.broker.start()
        await asyncio.sleep(1)
        header = UnregisterBrokerRequestHeader("broker-a", "127.0.0.1:10911", "DefaultCluster", 0)
        await world.ask(RequestCode.UNREGISTER_BROKER, header)
        assert not await world.has_route(FIRST)
        await asyncio.sleep(31)
        assert await world.has_route(FIRST), "the query shows that it knows nothing"
        await world.ask(RequestCode.UNREGISTER_BROKER, header)
        world.topics.put(TopicConfig("New"))
        await asyncio.sleep(2)
        assert await world.has_route(FIRST, "New"), (
            "a single change of an unknown broker is refused"
        )
        assert await world.has_route(FIRST)
        await world.stop(namesrv)

    run_virtual(main())


def test_a_topic_deleted_at_a_name_server_by_mistake_is_restored() -> None:
    async def main() -> None:
        world = World(namesrv_addr=BOTH[:1])
        namesrv = await world.namesrv(FIRST)
        await world.broker.start()
        header = DeleteTopicFromNamesrvRequestHeader("TBW102")
        await world.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, header)
        assert not await world.has_route(FIRST)
        await asyncio.sleep(305)
        assert await world.has_route(FIRST)
        await world.stop(namesrv)

    run_virtual(main())


def test_all_topics_are_sent_if_more_changed_than_are_held(sent: list[list[str]]) -> None:
    async def main() -> None:
        world = World(namesrv_addr=BOTH[:1])
        namesrv = await world.namesrv(FIRST)
        await world.broker.start()
        await asyncio.sleep(1)
        for number in range(1001):
            world.topics.put(TopicConfig(f"T{number}"))
        await asyncio.sleep(0.5)
        assert len(sent[-1]) == len(world.topics)
        assert await world.has_route(FIRST, "T0")
        await world.stop(namesrv)

    run_virtual(main())


def test_a_topic_in_the_order_configuration_is_marked_as_ordered() -> None:
    async def main() -> None:
        world = World(namesrv_addr=BOTH[:1])
        namesrv = await world.namesrv(FIRST)
        header = PutKVConfigRequestHeader("ORDER_TOPIC_CONFIG", "T", "broker-a:4")
        await world.ask(RequestCode.PUT_KV_CONFIG, header)
        await world.broker.start()
        world.topics.put(TopicConfig("T"))
        world.topics.put(TopicConfig("U"))
        await asyncio.sleep(1)
        assert [topic.order for topic in world.topics if topic.name in "TU"] == [True, False]
        await world.stop(namesrv)

    run_virtual(main())


def test_a_changed_broker_permission_is_registered() -> None:
    async def main() -> None:
        world = World(namesrv_addr=BOTH[:1])
        namesrv = await world.namesrv(FIRST)
        await world.broker.start()
        live = world.broker.components.context.live_config
        await asyncio.sleep(1)
        live.update({"brokerPermission": "4"}, 1)
        await asyncio.sleep(1)
        assert (await world.route(FIRST)).queue_datas[0].perm == 4
        live.update({"brokerPermission": "6"}, 1)
        await asyncio.sleep(1)
        assert (await world.route(FIRST)).queue_datas[0].perm == 7
        await world.stop(namesrv)

    run_virtual(main())


def test_a_permission_changed_during_a_registration_is_registered_for_all_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        world = World(namesrv_addr=BOTH[:1])
        namesrv = await world.namesrv(FIRST)
        await world.broker.start()
        live = world.broker.components.context.live_config
        await asyncio.sleep(1)

        def change() -> None:
            live.update({"brokerPermission": "4"}, 1)
            world.topics.put(TopicConfig("Second"))

        def encode(body: RegisterBody) -> bytes:
            if list(body.table.topics) == ["First"]:
                asyncio.get_running_loop().call_soon(change)  # while the request is under way
            return encode_register_body(body)

        monkeypatch.setattr("kourou.broker.registration.encode_register_body", encode)
        world.topics.put(TopicConfig("First"))
        await asyncio.sleep(1)
        for name in ("TBW102", "First", "Second"):
            assert (await world.route(FIRST, name)).queue_datas[0].perm == 4
        await world.stop(namesrv)

    run_virtual(main())
