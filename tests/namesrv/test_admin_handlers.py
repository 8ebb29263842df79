"""Tests of the administration requests: answers equal Java's, and changes are durable."""

from __future__ import annotations

import asyncio
from typing import Self

import pytest

from kourou.errors import RemoteError
from kourou.model.route import BrokerData, QueueData, TopicRoute
from kourou.model.topic import TopicConfig
from kourou.namesrv.config import NamesrvConfig
from kourou.namesrv.server import NameServer
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand, raise_for_response, request
from kourou.protocol.data_version import DataVersion
from kourou.protocol.kv_config import (
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    PutKVConfigRequestHeader,
    decode_kv_table,
)
from kourou.protocol.properties_text import decode_properties_text, encode_properties_text
from kourou.protocol.routes import (
    AddWritePermOfBrokerResponseHeader,
    GetRouteInfoRequestHeader,
    NotifyMinBrokerIdChangeRequestHeader,
    RegisterTopicRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
    decode_topic_route,
    encode_topic_route,
)
from kourou.protocol.topic_table import (
    RegisterBody,
    RegisterBrokerRequestHeader,
    TopicConfigTable,
    UnregisterBrokerRequestHeader,
    encode_register_body,
)
from kourou.protocol.topics import decode_topic_list
from kourou.remoting.limits import ConnectionLimits
from kourou.remoting.network import format_address
from kourou.remoting.pool import ConnectionPool
from kourou.testing.disk import SimDisk
from kourou.testing.loop import run_virtual
from kourou.testing.runtime import sim_runtime
from tests.golden_exchanges import recorded

TOPICS = (TopicConfig("GoldenNormal", 4, 4), TopicConfig("GoldenUnit", 4, 4, topic_sys_flag=3))


class Admin:
    """A running name server, and a client of it."""

    def __init__(self, disk: SimDisk | None = None, **config: object) -> None:
        self.runtime = sim_runtime()
        self.disk = disk
        self.config = NamesrvConfig(port=9876, **config)  # type: ignore[arg-type]
        self.notices: list[NotifyMinBrokerIdChangeRequestHeader] = []
        self.pools: list[ConnectionPool] = []

    async def __aenter__(self) -> Self:
        self.namesrv = NameServer(self.config, self.runtime, self.disk)
        self.address = format_address(await self.namesrv.start())
        self.pool = self.new_pool()
        return self

    async def __aexit__(self, *_: object) -> None:
        for pool in self.pools:
            await pool.close()
        await self.namesrv.stop()

    def new_pool(self) -> ConnectionPool:
        """Return the connections of one more broker."""

        def on_notice(command: object) -> None:
            header = command.command.header(NotifyMinBrokerIdChangeRequestHeader)  # type: ignore[attr-defined]
            self.notices.append(header)

        handlers = {int(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE): on_notice}
        self.pools.append(ConnectionPool(self.runtime, handlers, ConnectionLimits()))
        return self.pools[-1]

    async def send(
        self, command: RemotingCommand, pool: ConnectionPool | None = None
    ) -> RemotingCommand:
        return await (pool or self.pool).request(self.address, command, 3)

    async def ask(
        self, code: RequestCode, header: object | None = None, body: bytes = b""
    ) -> RemotingCommand:
        answer = await self.send(request(code, header, body))
        raise_for_response(answer)
        return answer

    async def register(
        self,
        *topics: TopicConfig,
        broker_id: int = 0,
        counter: int = 1,
        pool: ConnectionPool | None = None,
        acting: bool = False,
    ) -> RemotingCommand:
        table = TopicConfigTable({one.name: one for one in topics}, DataVersion(counter, 0, 1))
        body = encode_register_body(RegisterBody(table))
        header = RegisterBrokerRequestHeader(
            "broker-a",
            f"127.0.0.1:{20911 + 100 * broker_id}",
            "DefaultCluster",
            f"127.0.0.1:{20912 + 100 * broker_id}",
            broker_id,
            enable_acting_master=acting,
        )
        answer = await self.send(request(RequestCode.REGISTER_BROKER, header, body), pool)
        raise_for_response(answer)
        return answer

    async def route(self, topic: str = "GoldenNormal") -> TopicRoute:
        header = GetRouteInfoRequestHeader(topic=topic)
        return decode_topic_route((await self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)).body)

    async def put(self, namespace: str, key: str, value: str) -> None:
        await self.ask(RequestCode.PUT_KV_CONFIG, PutKVConfigRequestHeader(namespace, key, value))

    async def set(self, **options: str) -> None:
        await self.ask(RequestCode.UPDATE_NAMESRV_CONFIG, None, encode_properties_text(options))


def test_recorded_java_admin_session_gets_the_same_answers() -> None:
    """Requests in the order of the recording; lists may differ only in the number of topics."""

    async def test() -> None:
        async with Admin() as admin:
            await admin.register(*TOPICS)
            for name in (
                "100_PUT_KV_CONFIG_raw-kv-put",
                "100_PUT_KV_CONFIG_raw-kv-put-null_rc1",
                "101_GET_KV_CONFIG_raw-kv-get",
                "101_GET_KV_CONFIG_raw-kv-get-missing_rc22",
                "219_GET_KVLIST_BY_NAMESPACE_raw-kv-list",
                "219_GET_KVLIST_BY_NAMESPACE_raw-kv-list-missing_rc22",
                "102_DELETE_KV_CONFIG_raw-kv-delete",
                "217_REGISTER_TOPIC_IN_NAMESRV_raw-register-topic",
                "224_GET_TOPICS_BY_CLUSTER_raw-topics-by-unknown-cluster",
                "304_GET_SYSTEM_TOPIC_LIST_FROM_NS_raw-system-topics-namesrv",
                "311_GET_UNIT_TOPIC_LIST_raw-unit-topics",
                "312_GET_HAS_UNIT_SUB_TOPIC_LIST_raw-has-unit-sub-topics",
                "313_GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST_raw-has-unit-sub-ununit-topics",
                "318_UPDATE_NAMESRV_CONFIG_raw-namesrv-config-update",
                "318_UPDATE_NAMESRV_CONFIG_raw-namesrv-config-update-forbidden_rc16",
                "901_GET_BROKER_MEMBER_GROUP_raw-broker-member-group",
                "901_GET_BROKER_MEMBER_GROUP_raw-broker-member-group-unknown",
            ):
                answer, java = (
                    await admin.send(recorded(name, "request")),
                    recorded(name, "response"),
                )
                assert answer.code == java.code, name
                assert sorted(answer.body) == sorted(java.body), name
                assert answer.ext_fields == java.ext_fields, name
                if not name.startswith("901"):
                    assert answer.remark == java.remark, name
            assert (await admin.route("GoldenRegisteredTopic")).queue_datas == (
                QueueData("broker-a", 3, 3, 6),
            )

    run_virtual(test())


def test_wipe_and_add_of_write_permission_answer_as_java() -> None:
    async def test() -> None:
        async with Admin() as admin:
            await admin.register(*TOPICS)
            wiped = await admin.send(
                recorded("205_WIPE_WRITE_PERM_OF_BROKER_raw-wipe-write-perm", "request")
            )
            assert wiped.header(WipeWritePermOfBrokerResponseHeader).wipe_topic_count == 2
            assert (await admin.route()).queue_datas[0].perm == 4
            await admin.register(*TOPICS)
            assert (await admin.route()).queue_datas[0].perm == 4, "the same again changes nothing"
            added = await admin.send(
                recorded("327_ADD_WRITE_PERM_OF_BROKER_raw-add-write-perm", "request")
            )
            assert added.header(AddWritePermOfBrokerResponseHeader).add_topic_count == 2
            assert (await admin.route()).queue_datas[0].perm == 6

    run_virtual(test())


def test_ordered_topics_survive_restart_and_reach_clients_and_brokers() -> None:
    async def test() -> None:
        disk = SimDisk()
        async with Admin(disk) as admin:
            assert not (await admin.register(*TOPICS)).body, "no namespace: no body, as Java"
            await admin.put("ORDER_TOPIC_CONFIG", "GoldenNormal", "broker-a:4")
        disk.crash()
        async with Admin(disk) as admin:
            answer = await admin.register(*TOPICS)
            assert decode_kv_table(answer.body) == {"GoldenNormal": "broker-a:4"}
            assert (await admin.route()).order_topic_conf is None, "off by default"
            await admin.set(orderMessageEnable="true", returnOrderTopicConfigToBroker="false")
            assert (await admin.route()).order_topic_conf == "broker-a:4"
            assert (await admin.route("GoldenUnit")).order_topic_conf is None
            assert not (await admin.register(*TOPICS)).body

    run_virtual(test())


def test_change_that_cannot_be_saved_is_an_error() -> None:
    async def test() -> None:
        disk = SimDisk()
        async with Admin(disk) as admin:
            disk.fail_after(0, OSError(28, "No space left on device"))
            with pytest.raises(RemoteError, match=r"cannot be saved: .*No space left"):
                await admin.put("ns", "k", "v")
            header = GetKVConfigRequestHeader("ns", "k")
            answer = await admin.ask(RequestCode.GET_KV_CONFIG, header)
            assert answer.header(GetKVConfigResponseHeader).value == "v"

    run_virtual(test())


def test_a_key_without_a_value_is_refused() -> None:
    async def test() -> None:
        async with Admin() as admin:
            with pytest.raises(RemoteError, match="value is missing"):
                await admin.ask(
                    RequestCode.PUT_KV_CONFIG, PutKVConfigRequestHeader("ns", "k", None)
                )

    run_virtual(test())


@pytest.mark.parametrize(
    ("option", "codes"),
    [("enableAllTopicList", (206,)), ("enableTopicList", (224, 311, 312, 313))],
)
def test_topic_lists_can_be_disabled(option: str, codes: tuple[int, ...]) -> None:
    async def test() -> None:
        async with Admin() as admin:
            await admin.set(**{option: "false"})
            for code in codes:
                command = request(code)
                command.ext_fields["cluster"] = "C"
                answer = await admin.send(command)
                assert (answer.code, answer.remark) == (1, "disable"), code

    run_virtual(test())


def test_routes_are_refused_during_the_start_up_wait() -> None:
    async def test() -> None:
        async with Admin(need_wait_for_service=True, wait_for_service_s=45) as admin:
            await admin.register(*TOPICS)
            with pytest.raises(RemoteError, match="name server not ready"):
                await admin.route()
            await asyncio.sleep(45.1)
            await admin.register(*TOPICS)
            assert (await admin.route()).queue_datas

    run_virtual(test())


def test_slave_is_acting_master_after_the_master_left() -> None:
    async def test() -> None:
        async with Admin(support_acting_master=True) as admin:
            await admin.register(*TOPICS, acting=True)
            await admin.register(*TOPICS, broker_id=2, acting=True)
            header = UnregisterBrokerRequestHeader(
                "broker-a", "127.0.0.1:20911", "DefaultCluster", 0
            )
            await admin.ask(RequestCode.UNREGISTER_BROKER, header)
            route = await admin.route()
            assert route.broker_datas == (
                BrokerData("DefaultCluster", "broker-a", {0: "127.0.0.1:21111"}, True),
            )
            assert route.queue_datas[0].perm == 4
            await admin.set(supportActingMaster="false")
            assert (await admin.route()).broker_datas[0].broker_addrs == {2: "127.0.0.1:21111"}

    run_virtual(test())


def test_brokers_are_notified_of_the_lowest_id() -> None:
    async def test() -> None:
        async with Admin(notify_min_broker_id_changed=True) as admin:
            slave, other, master = (admin.new_pool() for _ in range(3))
            await admin.register(*TOPICS, broker_id=2, pool=slave)
            await admin.register(*TOPICS, broker_id=3, pool=other)
            await asyncio.sleep(0.1)
            assert admin.notices == [], "a second one is no news, nor is the first"
            await admin.register(*TOPICS, pool=master)
            await asyncio.sleep(0.1)
            joined = NotifyMinBrokerIdChangeRequestHeader(
                0, None, "127.0.0.1:20911", None, "127.0.0.1:20912"
            )
            assert admin.notices == [joined, joined], "told to all but the new one"
            admin.notices.clear()
            await master.close()
            await asyncio.sleep(0.1)
            left = NotifyMinBrokerIdChangeRequestHeader(
                2, None, "127.0.0.1:21111", "127.0.0.1:20911"
            )
            assert admin.notices == [left, left]

    run_virtual(test())


def test_topics_missing_from_a_full_registration_are_removed_only_if_enabled() -> None:
    own = TopicConfig("broker-a", 1, 1)

    async def topics(admin: Admin) -> list[str]:
        answer = await admin.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return decode_topic_list(answer.body)

    async def test() -> None:
        async with Admin() as admin:
            await admin.register(own, *TOPICS)
            await admin.register(own, TOPICS[0], counter=2)
            assert await topics(admin) == ["GoldenNormal", "GoldenUnit", "broker-a"]
            await admin.set(deleteTopicWithBrokerRegistration="true")
            await admin.register(TopicConfig("New", 1, 1), counter=3)
            assert len(await topics(admin)) == 4, "a single change takes nothing away"
            await admin.register(own, TOPICS[0], counter=4)
            assert await topics(admin) == ["GoldenNormal", "broker-a"]

    run_virtual(test())


@pytest.mark.parametrize(
    ("topic", "brokers", "registered"),
    [
        ("New", ("broker-a",), ["broker-a"]),
        ("New", ("broker-a", "nobody"), None),
        ("New", (), None),
        ("GoldenNormal", ("nobody", "broker-a"), ["broker-a"]),
    ],
)
def test_topic_is_registered_on_registered_brokers_only(
    topic: str, brokers: tuple[str, ...], registered: list[str] | None
) -> None:
    async def test() -> None:
        async with Admin() as admin:
            await admin.register(*TOPICS)
            route = TopicRoute(tuple(QueueData(name, 1, 1, 6) for name in brokers), ())
            body = encode_topic_route(route, standard=True)
            await admin.ask(
                RequestCode.REGISTER_TOPIC_IN_NAMESRV, RegisterTopicRequestHeader(topic), body
            )
            if registered is None:
                with pytest.raises(RemoteError, match="No topic route info"):
                    await admin.route(topic)
            else:
                queues = (await admin.route(topic)).queue_datas
                assert [data.broker_name for data in queues] == registered

    run_virtual(test())


def test_options_are_read_back() -> None:
    async def test() -> None:
        async with Admin() as admin:
            await admin.set(waitSecondsForService="7")
            answer = await admin.ask(RequestCode.GET_NAMESRV_CONFIG)
            values = decode_properties_text(answer.body)
            assert values["waitSecondsForService"] == "7"
            assert values["listenPort"] == "9876"
            with pytest.raises(RemoteError, match="true or false"):
                await admin.set(orderMessageEnable="perhaps")

    run_virtual(test())
