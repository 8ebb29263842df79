"""Tests of the processes of a cluster: names, ports, options, file format."""

from __future__ import annotations

import json
from itertools import pairwise
from random import Random

import pytest

from kourou.errors import AddressInUseError, UsageError
from kourou.supervising.member_options import member_options
from kourou.supervising.topology import (
    Role,
    Shape,
    Topology,
    create_topology,
    decode_topology,
    encode_topology,
)


def topology(brokers: int = 2, replicas: int = 2, namesrvs: int = 2, port: int = 9876) -> Topology:
    shape = Shape(brokers=brokers, replicas=replicas, namesrvs=namesrvs)
    return create_topology(shape, port, lambda _: True, Random(1))


def settings_of(found: Topology, name: str) -> dict[str, str]:
    member = next(member for member in found.members if member.name == name)
    return member_options(found, member, "/d", None)[1]


def test_members_are_name_servers_then_each_master_with_its_slaves() -> None:
    found = topology()

    assert [(m.name, m.role.value, m.broker, m.broker_id) for m in found.members] == [
        ("namesrv-1", "namesrv", "", 0),
        ("namesrv-2", "namesrv", "", 0),
        ("broker-a", "master", "broker-a", 0),
        ("broker-a-1", "slave", "broker-a", 1),
        ("broker-b", "master", "broker-b", 0),
        ("broker-b-1", "slave", "broker-b", 1),
    ]


def test_ports_are_distinct_and_leave_room_for_vip_ports() -> None:
    found = topology(brokers=26, replicas=5, namesrvs=9)
    ports = sorted(
        port for m in found.members for port in (m.port, m.ha_port, m.console_port) if port
    )
    chosen = [port for port in ports if port != 9876]

    assert ports[0] == found.members[0].port == 9876
    assert all(later - port >= 4 for port, later in pairwise(chosen))
    assert chosen[-1] < 32_768, "systems assign ports above to outgoing connections"


def test_used_ports_are_not_chosen() -> None:
    free = set(range(25_000, 25_100))
    shape = Shape(brokers=3)

    found = create_topology(shape, 0, free.__contains__, Random(2))

    assert {m.port for m in found.members} <= free
    with pytest.raises(AddressInUseError, match="20000-31999"):
        create_topology(Shape(brokers=26), 0, free.__contains__, Random(2))


def test_requested_port_of_the_name_server_is_chosen_for_no_other_server() -> None:
    free = {25_000, *range(25_002, 25_098)}

    with pytest.raises(AddressInUseError):  # 23 pairs of ports without it, for 24 servers
        create_topology(Shape(brokers=12), 25_004, free.__contains__, Random(2))


def test_port_of_the_name_server_in_use_is_refused() -> None:
    with pytest.raises(AddressInUseError, match=r"127\.0\.0\.1:9876"):
        create_topology(Shape(brokers=1), 9876, lambda port: port != 9876, Random(1))


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ({"brokers": 0}, "--brokers is 0; it must be 1 to 26"),
        ({"brokers": 27}, "--brokers is 27; it must be 1 to 26"),
        ({"brokers": 1, "replicas": 0}, "--replicas is 0; it must be 1 to 5: it counts the copies"),
        ({"brokers": 1, "namesrvs": 10}, "--namesrvs is 10; it must be 1 to 9"),
        ({"brokers": 1, "controllers": 10}, "--controllers is 10; it must be 0 to 9: 0 means"),
        ({"brokers": 1, "proxies": 10}, "--proxies is 10; it must be 0 to 9: each serves all"),
    ],
)
def test_number_out_of_range_is_refused(numbers: dict[str, int], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        Shape(**numbers)


def test_master_without_slaves_does_not_replicate() -> None:
    assert settings_of(topology(replicas=1), "broker-b") == {
        "KOUROU_BROKER_CLUSTER_NAME": "DefaultCluster",
        "KOUROU_BROKER_BROKER_NAME": "broker-b",
        "KOUROU_BROKER_ADVERTISE": "127.0.0.1",
        "KOUROU_BROKER_BROKER_ID": "0",
    }


@pytest.mark.parametrize(("replicas", "in_sync"), [(2, "2"), (3, "2")])
def test_master_with_slaves_waits_for_as_many_copies_as_it_can_count(
    replicas: int, in_sync: str
) -> None:
    found = topology(replicas=replicas)
    master, slave = settings_of(found, "broker-a"), settings_of(found, "broker-a-1")

    assert master["KOUROU_BROKER_BROKER_ROLE"] == "SYNC_MASTER"
    assert master["KOUROU_BROKER_IN_SYNC_REPLICAS"] == in_sync
    assert slave["KOUROU_BROKER_BROKER_ROLE"] == "SLAVE"
    assert slave["KOUROU_BROKER_BROKER_ID"] == "1"
    port = master["KOUROU_BROKER_HA_LISTEN_PORT"]
    assert slave["KOUROU_BROKER_HA_MASTER_ADDRESS"] == f"127.0.0.1:{port}"


def controlled(controllers: int = 3, *, has_etcd: bool = True) -> Topology:
    shape = Shape(brokers=2, replicas=2, controllers=controllers)
    return create_topology(shape, 9876, lambda _: True, Random(1), has_etcd=has_etcd)


def test_controllers_decide_the_roles_of_replicas() -> None:
    found = controlled()

    assert [(m.name, m.role.value, m.broker, m.broker_id) for m in found.members] == [
        ("namesrv-1", "namesrv", "", 0),
        ("etcd", "etcd", "", 0),
        ("controller-1", "controller", "", 0),
        ("controller-2", "controller", "", 0),
        ("controller-3", "controller", "", 0),
        ("broker-a-1", "replica", "broker-a", 1),
        ("broker-a-2", "replica", "broker-a", 2),
        ("broker-b-1", "replica", "broker-b", 1),
        ("broker-b-2", "replica", "broker-b", 2),
    ]
    ports = sorted(port for member in found.members for port in member.ports)
    assert all(later - port >= 4 for port, later in pairwise(ports))
    assert decode_topology(encode_topology(found)) == found
    settings = settings_of(found, "broker-b-2")
    assert settings["KOUROU_BROKER_CONTROLLER_ADDR"] == found.controllers
    assert found.controllers.count("127.0.0.1:") == 3
    assert settings["KOUROU_BROKER_ADVERTISE"] == "127.0.0.1", "not the brokerIP1 of --config"
    assert "KOUROU_BROKER_BROKER_ID" not in settings


def test_replicas_start_in_the_order_of_their_ids_until_they_have_them() -> None:
    found = controlled()
    servers = ("namesrv-1", "etcd"), ("controller-1", "controller-2", "controller-3")
    first, second = ("broker-a-1", "broker-b-1"), ("broker-a-2", "broker-b-2")
    brokers = tuple(member.name for member in found.members if member.broker)

    assert found.start_groups(in_order=True) == [*servers, first, second]
    assert found.start_groups(in_order=False) == [*servers, brokers]
    assert [group for group in found.stop_groups() if group] == [brokers, servers[1], servers[0]]


def test_several_controllers_need_etcd() -> None:
    with pytest.raises(UsageError, match=r"--controllers 3 needs .* package etcd-server\), or "):
        controlled(has_etcd=False)


@pytest.mark.parametrize("has_etcd", [False, True])
def test_controller_has_its_state_in_etcd_where_it_is_installed(*, has_etcd: bool) -> None:
    found = controlled(1, has_etcd=has_etcd)
    (controller,) = found.of_role(Role.CONTROLLER)
    words, _ = member_options(found, controller, "/d", "x.conf")

    place = [f"http://{etcd.address}" for etcd in found.of_role(Role.ETCD)]
    assert words[1:3] == (["--etcd", *place] if has_etcd else ["--file", "/d"])
    assert "x.conf" not in words


@pytest.mark.parametrize(("replicas", "least"), [(1, "1"), (2, "1"), (3, "2"), (5, "2")])
def test_in_sync_set_has_two_members_unless_it_could_not_lose_one(
    replicas: int, least: str
) -> None:
    shape = Shape(brokers=1, replicas=replicas, controllers=1)
    found = create_topology(shape, 0, lambda _: True, Random(1))

    assert settings_of(found, "broker-a-1")["KOUROU_BROKER_MIN_IN_SYNC_REPLICAS"] == least


def test_proxies_start_last_and_stop_first() -> None:
    shape = Shape(brokers=1, replicas=2, namesrvs=2, proxies=2)
    found = create_topology(shape, 0, lambda _: True, Random(1))
    proxies = found.of_role(Role.PROXY)
    words, settings = member_options(found, proxies[0], "/d", "x.conf")

    assert str(shape).endswith("--proxies 2")
    assert found.start_groups(in_order=False)[-1] == ("proxy-1", "proxy-2")
    assert found.stop_groups()[0] == ("proxy-1", "proxy-2")
    assert found.proxies == ";".join(proxy.address for proxy in proxies)
    assert decode_topology(encode_topology(found)) == found
    assert words[:4] == ["serve", "proxy", "--namesrv", found.namesrv]
    assert words[words.index("--grpc-port") + 1] == str(proxies[0].port)
    assert settings == {"KOUROU_PROXY_HOME": "/d"}, "the certificate is in its own directory"


def test_file_of_a_cluster_without_controllers_is_read() -> None:
    found = json.loads(encode_topology(topology()))
    del found["controllers"]
    del found["proxies"]
    for member in found["members"]:
        del member["peer_port"]

    assert decode_topology(json.dumps(found)) == topology()


def test_brokers_register_with_all_name_servers() -> None:
    found = topology()
    words, _ = member_options(found, found.members[2], "/d", "x.conf")

    namesrvs = ";".join(member.address for member in found.of_role(Role.NAMESRV))
    assert words[words.index("--namesrv") + 1] == namesrvs == found.namesrv
    assert words[-2:] == ["--config", "x.conf"]


def test_topology_survives_its_file() -> None:
    found = topology()

    assert decode_topology(encode_topology(found)) == found


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"brokers": 3},
        {"brokers": 0},
        {"controllers": 1},
        {"members": []},
        {"members": [{"name": "x"}]},
        {"members": [{"role": "king"}]},
    ],
)
def test_damaged_file_is_refused(change: dict[str, object]) -> None:
    text = json.dumps(json.loads(encode_topology(topology())) | change)

    with pytest.raises(ValueError, match=r"."):
        decode_topology(text)
