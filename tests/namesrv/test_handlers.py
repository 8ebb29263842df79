"""Tests of the requests of brokers and clients: answers equal Java's."""

from __future__ import annotations

import asyncio
import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import ParamSpec, TypeVar

import pytest

from kourou.model.topic import TopicConfig
from kourou.namesrv.admin_handlers import NamesrvAdminHandlers
from kourou.namesrv.broker_identity import BrokerIdentity
from kourou.namesrv.config import LiveConfig, NamesrvConfig
from kourou.namesrv.handlers import ON_LOOP_BYTES, NamesrvHandlers
from kourou.namesrv.kv_config import KvConfig
from kourou.namesrv.routes import TOPICS_PER_STEP, RouteTable
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand, request
from kourou.protocol.data_version import DataVersion, decode_data_version, encode_data_version
from kourou.protocol.hashing import crc32
from kourou.protocol.routes import (
    DeleteTopicFromNamesrvRequestHeader,
    GetBrokerMemberGroupRequestHeader,
    GetRouteInfoRequestHeader,
    GetTopicsByClusterRequestHeader,
    decode_cluster_info,
    decode_topic_route,
)
from kourou.protocol.topic_table import (
    BrokerHeartbeatRequestHeader,
    QueryDataVersionRequestHeader,
    RegisterBody,
    RegisterBrokerRequestHeader,
    TopicConfigTable,
    UnregisterBrokerRequestHeader,
    encode_register_body,
)
from kourou.protocol.topics import decode_topic_list
from kourou.remoting.deferred_replies import DeferredReplies
from kourou.remoting.dispatch import Dispatcher
from kourou.remoting.runtime import Offload
from kourou.testing.loop import run_virtual
from kourou.testing.peers import FakePeer
from kourou.testing.runtime import call_directly
from tests.golden_exchanges import recorded

ADDRESS = "127.0.0.1:20911"
BROKER = ("broker-a", ADDRESS, "DefaultCluster", 0)
P = ParamSpec("P")
T = TypeVar("T")

VERSION = DataVersion(3, 0, 1_795_228_489_975)


class Asked:
    """The handlers of a name server, and a broker that sends requests to them."""

    def __init__(self, offload: Offload = call_directly, **config: object) -> None:
        self.now_ms = 0
        self.routes = RouteTable()
        self.peer = FakePeer()
        self.config = LiveConfig(NamesrvConfig(**config))  # type: ignore[arg-type]
        self.kv = KvConfig(None, call_directly)
        handlers = NamesrvHandlers(
            self.routes,
            self.kv,
            self.config,
            lambda: self.now_ms,
            offload=offload,
            later=DeferredReplies(),
        )
        admin = NamesrvAdminHandlers(self.routes, self.kv, self.config, DeferredReplies())
        self._dispatch = Dispatcher({**handlers.table(), **admin.table()})

    def ask_command(self, command: RemotingCommand) -> RemotingCommand:
        self._dispatch(self.peer.request_of(command))
        return self.peer.sent[-1]

    def ask(self, code: int, header: object | None = None, body: bytes = b"") -> RemotingCommand:
        return self.ask_command(request(code, header, body))

    def register(self, *topics: TopicConfig, **header: object) -> RemotingCommand:
        """Register broker-a with these topics."""
        self.register_later(*topics, **header)
        return self.peer.sent[-1]

    def register_later(self, *topics: TopicConfig, **header: object) -> None:
        """Register broker-a with these topics; the answer may be sent later."""
        table = TopicConfigTable({topic.name: topic for topic in topics}, VERSION)
        body = encode_register_body(RegisterBody(table))
        values = {
            "broker_name": BROKER[0],
            "broker_addr": BROKER[1],
            "cluster_name": BROKER[2],
            "ha_server_addr": "127.0.0.1:20912",
            "broker_id": 0,
            "body_crc32": crc32(body),
        }
        command = request(
            RequestCode.REGISTER_BROKER,
            RegisterBrokerRequestHeader(**(values | header)),  # type: ignore[arg-type]
            body,
        )
        self._dispatch(self.peer.request_of(command))

    def route(self, topic: str = "T", **fields: str) -> RemotingCommand:
        command = request(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(topic=topic)
        )
        command.ext_fields.update(fields)
        return self.ask_command(command)


@pytest.fixture
def asked() -> Asked:
    """Return handlers with broker-a and the topic GoldenNormal, as in the recorded session."""
    asked = Asked()
    asked.register(TopicConfig("GoldenNormal", 4, 4), TopicConfig("TBW102", 8, 8, 7))
    return asked


@pytest.mark.parametrize(
    "name",
    [
        "105_GET_ROUTEINFO_BY_TOPIC_raw-route-found-standard-json",
        "105_GET_ROUTEINFO_BY_TOPIC_raw-route-old-client-version",
        "106_GET_BROKER_CLUSTER_INFO_raw-cluster-info",
    ],
)
def test_answer_equals_javas_byte_by_byte(asked: Asked, name: str) -> None:
    answer, java = asked.ask_command(recorded(name, "request")), recorded(name, "response")

    assert (answer.code, answer.opaque, answer.flag) == (java.code, java.opaque, java.flag)
    assert answer.body == java.body


def test_a_java_broker_registers_and_leaves() -> None:
    asked = Asked()
    answer = asked.ask_command(recorded("103_REGISTER_BROKER_broker-start", "request"))
    assert (answer.code, answer.ext_fields, answer.remark) == (0, {}, None)
    assert {"TBW102", "SELF_TEST_TOPIC", "broker-a"} <= set(asked.routes.queues.topics())

    assert asked.ask_command(recorded("104_UNREGISTER_BROKER_broker-stop", "request")).code == 0
    assert asked.routes.queues.topics() == []


def test_a_single_change_before_all_topics_is_refused_as_java_does() -> None:
    name = "103_REGISTER_BROKER_background_rc1"
    answer, java = Asked().ask_command(recorded(name, "request")), recorded(name, "response")

    assert (answer.code, answer.remark) == (java.code, java.remark)


def test_body_with_wrong_checksum_is_refused() -> None:
    asked = Asked()
    answer = asked.register(TopicConfig("T"), TopicConfig("U"), body_crc32=5)

    assert (answer.code, answer.remark) == (1, "crc32 not match")
    assert asked.routes.queues.topics() == []


def test_body_without_checksum_is_accepted() -> None:
    asked = Asked()
    assert asked.register(TopicConfig("T"), TopicConfig("U"), body_crc32=0).code == 0
    assert asked.routes.queues.topics() == ["T", "U"]


def test_registration_without_body_registers_only_the_broker() -> None:
    asked = Asked()
    command = recorded("103_REGISTER_BROKER_raw-register-broker-empty-body", "request")
    assert asked.ask_command(command).code == 0
    assert list(asked.routes.cluster_info().brokers) == ["broker-x"]
    assert asked.routes.queues.topics() == []


def test_a_body_that_does_not_parse_is_refused_with_the_reason() -> None:
    asked = Asked()
    header = RegisterBrokerRequestHeader(*BROKER[:3], "", 0)
    answer = asked.ask(RequestCode.REGISTER_BROKER, header, b"{")

    assert answer.code == 1
    assert answer.remark
    assert not asked.routes.cluster_info().brokers


def test_a_missing_header_field_is_named() -> None:
    answer = Asked().ask(RequestCode.REGISTER_BROKER)

    assert answer.code == 1
    assert "brokerName" in (answer.remark or "")


def test_a_compressed_registration_is_read() -> None:
    def sized(text: bytes) -> bytes:
        return struct.pack(">i", len(text)) + text

    parts = (
        sized(encode_data_version(VERSION))
        + struct.pack(">i", 2)
        + sized(b'T 4 3 6 SINGLE_TAG {"message.type":"NORMAL"}')
        + sized(b"U 8 8 4 SINGLE_TAG {}")
        + sized(b"[]")
        + struct.pack(">i", 0)
    )
    body = zlib.compress(parts, 9)
    header = RegisterBrokerRequestHeader(
        *BROKER[:3], "", 0, compressed=True, body_crc32=crc32(body)
    )
    asked = Asked()
    assert asked.ask(RequestCode.REGISTER_BROKER, header, body).code == 0

    found = decode_topic_route(asked.route("T").body).queue_datas[0]
    assert (found.read_queue_nums, found.write_queue_nums, found.perm) == (4, 3, 6)


def test_slave_registration_is_answered_with_the_master_addresses(asked: Asked) -> None:
    header = RegisterBrokerRequestHeader(
        "broker-a", "127.0.0.1:30911", "DefaultCluster", "127.0.0.1:30912", 1
    )
    answer = asked.ask(RequestCode.REGISTER_BROKER, header)
    assert answer.ext_fields == {"haServerAddr": "127.0.0.1:20912", "masterAddr": ADDRESS}


def test_unknown_topic_is_answered_17_with_its_name(asked: Asked) -> None:
    answer = asked.route("NoSuchTopic")
    assert answer.code == 17
    first_line = (answer.remark or "").splitlines()[0]
    assert first_line == "No topic route info in name server for the topic: NoSuchTopic"


def test_a_request_that_names_no_topic_is_answered_as_java_does(asked: Asked) -> None:
    name = "105_GET_ROUTEINFO_BY_TOPIC_raw-route-no-topic-field_rc17"
    answer, java = asked.ask_command(recorded(name, "request")), recorded(name, "response")

    assert answer.code == java.code
    assert (answer.remark or "").splitlines()[0] == (java.remark or "").splitlines()[0]


@pytest.mark.parametrize(
    ("version", "fields", "is_standard"),
    [
        (400, {}, False),
        (401, {}, True),
        (300, {"acceptStandardJsonOnly": "true"}, True),
    ],
)
def test_route_is_encoded_for_the_client_version(
    asked: Asked, version: int, fields: dict[str, str], is_standard: bool
) -> None:
    command = request(105, GetRouteInfoRequestHeader(topic="TBW102"))
    command.version = version
    command.ext_fields.update(fields)
    body = asked.ask_command(command).body
    assert (b'{"0":"127.0.0.1:20911"}' in body) == is_standard
    assert (b'{0:"127.0.0.1:20911"}' in body) != is_standard


def test_route_is_filtered_by_zone() -> None:
    asked = Asked()
    asked.register(TopicConfig("T"), TopicConfig("U"))
    for name, zone in (("b", "Z1"), ("c", "z2")):
        table = TopicConfigTable({"T": TopicConfig("T"), "U": TopicConfig("U")}, VERSION)
        command = request(
            RequestCode.REGISTER_BROKER,
            RegisterBrokerRequestHeader(name, f"{name}:1", "DefaultCluster", "", 0),
            encode_register_body(RegisterBody(table)),
        )
        command.ext_fields["__ZONE_NAME"] = zone
        asked.ask_command(command)

    narrowed = decode_topic_route(asked.route(__ZONE_MODE="true", __ZONE_NAME="z1").body)
    assert [broker.broker_name for broker in narrowed.broker_datas] == ["b"]
    assert [queues.broker_name for queues in narrowed.queue_datas] == ["b"]
    assert b'{0:"b:1"}' in asked.route(__ZONE_MODE="true", __ZONE_NAME="z1").body
    for fields in ({}, {"__ZONE_MODE": "true"}, {"__ZONE_NAME": "z1"}):
        assert len(decode_topic_route(asked.route(**fields).body).broker_datas) == 3


def test_a_broker_without_a_master_is_in_every_zone() -> None:
    asked = Asked()
    asked.register(TopicConfig("T"), TopicConfig("U"), broker_id=1, enable_acting_master=False)
    narrowed = decode_topic_route(asked.route(__ZONE_MODE="true", __ZONE_NAME="z1").body)
    assert len(narrowed.broker_datas) == len(narrowed.queue_datas) == 1


def test_an_unchanged_version_needs_no_registration(asked: Asked) -> None:
    header = QueryDataVersionRequestHeader(*BROKER)
    same = asked.ask(RequestCode.QUERY_DATA_VERSION, header, encode_data_version(VERSION))
    assert same.ext_fields == {"changed": "false"}
    assert decode_data_version(same.body) == VERSION

    newer = encode_data_version(DataVersion(4, 0, 1))
    assert asked.ask(RequestCode.QUERY_DATA_VERSION, header, newer).ext_fields == {
        "changed": "true"
    }


def test_an_unknown_broker_must_register(asked: Asked) -> None:
    header = QueryDataVersionRequestHeader("z", "1.2.3.4:5", "DefaultCluster", 0)
    answer = asked.ask(RequestCode.QUERY_DATA_VERSION, header, encode_data_version(VERSION))
    assert (answer.ext_fields, answer.body) == ({"changed": "true"}, b"")


@pytest.mark.parametrize("code", [RequestCode.BROKER_HEARTBEAT, RequestCode.QUERY_DATA_VERSION])
def test_heartbeat_and_version_query_keep_a_broker_registered(
    asked: Asked, code: RequestCode
) -> None:
    asked.now_ms = 100_000
    if code is RequestCode.BROKER_HEARTBEAT:
        heartbeat = BrokerHeartbeatRequestHeader("DefaultCluster", ADDRESS, "broker-a")
        assert asked.ask(code, heartbeat).code == 0
    else:
        asked.ask(code, QueryDataVersionRequestHeader(*BROKER), encode_data_version(VERSION))

    assert asked.routes.expire(200_000) == []
    assert len(asked.routes.expire(220_001)) == 1


def test_a_heartbeat_of_an_unknown_broker_is_no_error() -> None:
    header = BrokerHeartbeatRequestHeader("C", "1.2.3.4:5", "z")
    assert Asked().ask(RequestCode.BROKER_HEARTBEAT, header).code == 0


def test_unregistering_an_unknown_broker_is_no_error(asked: Asked) -> None:
    header = UnregisterBrokerRequestHeader("z", "1.2.3.4:5", "DefaultCluster", 0)
    assert asked.ask(RequestCode.UNREGISTER_BROKER, header).code == 0
    assert asked.routes.queues.topics() == ["GoldenNormal", "TBW102"]


def test_topics_are_listed_all_by_cluster_and_system(asked: Asked) -> None:
    def listed(code: int, header: object | None = None) -> list[str]:
        return decode_topic_list(asked.ask(code, header).body)

    assert listed(206) == ["GoldenNormal", "TBW102"]
    assert listed(224, GetTopicsByClusterRequestHeader("DefaultCluster")) == listed(206)
    assert listed(224, GetTopicsByClusterRequestHeader("Nope")) == []
    assert listed(304) == ["DefaultCluster", "broker-a"]
    assert json.loads(asked.ask(304).body)["brokerAddr"] == ADDRESS


def test_an_empty_name_server_answers_with_empty_lists() -> None:
    asked = Asked()
    assert asked.ask(206).body == asked.ask(304).body == b'{"topicList":[]}'
    info = decode_cluster_info(asked.ask(106).body)
    assert (info.brokers, info.clusters) == ({}, {})


def test_a_deleted_topic_is_no_longer_routed(asked: Asked) -> None:
    for header in (
        DeleteTopicFromNamesrvRequestHeader(topic="GoldenNormal", cluster_name="Other"),
        DeleteTopicFromNamesrvRequestHeader(topic="TBW102"),
        DeleteTopicFromNamesrvRequestHeader(topic="never"),
    ):
        assert asked.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, header).code == 0
    assert asked.routes.queues.topics() == ["GoldenNormal"]


@pytest.mark.parametrize("code", [10, 17, 902, 1001, 4711])
def test_unsupported_request_is_answered_3(code: int) -> None:
    async def main() -> None:
        answer = Asked().ask(code)
        assert (answer.code, answer.remark) == (3, f" request type {code} not supported")

    run_virtual(main())


EVERYWHERE = "0.0.0.0:20911"
"""Address that a broker registers in the process of the name server, if both listen everywhere."""


def from_this_machine(asked: Asked, local: str = "127.0.0.1") -> None:
    """Make requests arrive from this machine, at one of its addresses."""
    asked.peer.remote_address, asked.peer.local_address = (local, 50_000), (local, 9876)


@pytest.mark.parametrize(
    ("host", "reported"), [("10.0.0.7", "10.0.0.7:20911"), ("fd00::7", "[fd00::7]:20911")]
)
def test_wildcard_broker_address_becomes_the_host_of_the_clients_connection(
    host: str, reported: str
) -> None:
    asked = Asked()
    from_this_machine(asked)
    asked.register(TopicConfig("T"), TopicConfig("broker-a"), broker_addr=EVERYWHERE)
    asked.peer.remote_address, asked.peer.local_address = ("10.0.0.99", 50_000), (host, 9876)

    (broker,) = decode_topic_route(asked.route().body).broker_datas
    info = decode_cluster_info(asked.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body)
    group = asked.ask(
        RequestCode.GET_BROKER_MEMBER_GROUP,
        GetBrokerMemberGroupRequestHeader("DefaultCluster", "broker-a"),
    )
    system = asked.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)

    assert broker.broker_addrs == {0: reported}
    assert info.brokers["broker-a"].broker_addrs == {0: reported}
    assert reported.encode() in group.body
    assert reported.encode() in system.body


def test_wildcard_master_address_becomes_the_host_of_the_slaves_connection() -> None:
    asked = Asked()
    from_this_machine(asked)
    asked.register(
        TopicConfig("T"), TopicConfig("x"), broker_addr=EVERYWHERE, ha_server_addr="0.0.0.0:20912"
    )
    from_this_machine(asked, "10.0.0.7")
    answer = asked.register(
        TopicConfig("T"), TopicConfig("x"), broker_id=1, broker_addr="10.0.0.8:10911"
    )
    assert answer.ext_fields == {"haServerAddr": "10.0.0.7:20912", "masterAddr": "10.0.0.7:20911"}


def test_wildcard_address_of_a_remote_broker_is_refused() -> None:
    asked = Asked()
    asked.peer.remote_address = ("10.0.0.9", 50_000)

    answer = asked.register(TopicConfig("T"), TopicConfig("x"), broker_addr=EVERYWHERE)

    assert answer.code == 1
    assert "0.0.0.0:20911" in (answer.remark or "")
    assert "brokerIP1" in (answer.remark or "")
    assert asked.route().code == 17


def test_large_registration_is_decoded_off_the_loop_and_later_ones_are_queued() -> None:
    released: list[asyncio.Future[None]] = []

    async def decode_slowly(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        released.append(asyncio.get_running_loop().create_future())
        await released[-1]
        return function(*args, **kwargs)

    async def main() -> None:
        asked = Asked(offload=decode_slowly)
        many = [TopicConfig(f"T{number}", 1, 1) for number in range(ON_LOOP_BYTES // 100)]
        before = len(asked.peer.sent)
        asked.register_later(*many, TopicConfig("changed", 1, 1))
        asked.register_later(TopicConfig("changed", 8, 8), TopicConfig("broker-a", 1, 1))
        await asyncio.sleep(1)
        assert len(asked.peer.sent) == before
        assert len(released) == 1, "the second waits for the first"
        assert asked.route("changed").code == 17

        while released:
            released.pop().set_result(None)
            await asyncio.sleep(1)
        assert [one.code for one in asked.peer.sent[-2:]] == [0, 0]
        assert asked.route("T5").code == 0

    run_virtual(main())


def test_many_topics_of_a_registration_are_entered_in_slices() -> None:
    async def main() -> None:
        asked = Asked()
        count = 3 * TOPICS_PER_STEP + 1
        many = [TopicConfig(f"T{number}", 1, 1) for number in range(count)]
        asked.register_later(*many)
        entered = []
        while len(asked.peer.sent) < 1:
            entered.append(len(asked.routes.queues))
            await asyncio.sleep(0)
        assert asked.peer.sent[-1].code == 0
        assert len(asked.routes.queues) == count
        assert max(b - a for a, b in pairwise(entered)) == TOPICS_PER_STEP

    run_virtual(main())


@pytest.mark.parametrize("is_replaced", [False, True])
def test_broker_removed_while_its_topics_are_entered_leaves_none(
    is_replaced: bool,
) -> None:
    async def main() -> None:
        asked = Asked()
        many = [TopicConfig(f"T{number}", 1, 1) for number in range(3 * TOPICS_PER_STEP)]
        asked.register_later(*many)
        for _ in range(100):
            if len(asked.routes.queues) == TOPICS_PER_STEP:
                break
            await asyncio.sleep(0)
        if is_replaced:
            other = BrokerIdentity(BROKER[2], BROKER[0], 0, "127.0.0.1:9", "", None, None, None)
            newer = replace(VERSION, state_version=1)
            topics = {name: TopicConfig(name, 1, 1) for name in ("U", "V")}
            asked.routes.register(other, TopicConfigTable(topics, newer), "other", 0)
            asked.routes.unregister(*other.key)
        else:
            asked.routes.unregister_connection(asked.peer)
        await asyncio.sleep(1)
        assert asked.peer.sent[-1].code == 0
        assert not asked.routes.queues.topics()
        assert asked.route("T1").code == 17

    run_virtual(main())


def test_broker_disconnected_during_decoding_is_not_registered() -> None:
    async def main() -> None:
        asked = Asked()
        many = [TopicConfig(f"T{number}", 1, 1) for number in range(ON_LOOP_BYTES // 100)]
        asked.register_later(*many)
        asked.peer.close("a test")
        await asyncio.sleep(1)
        assert asked.route("T5").code == 17

    run_virtual(main())
