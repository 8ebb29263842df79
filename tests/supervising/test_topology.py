"""Tests of the processes of a cluster: names, ports, options, file format."""

from __future__ import annotations

import json
from itertools import pairwise
from random import Random

import pytest

from kourou.errors import AddressInUseError, UsageError
from kourou.supervising.topology import (
    Role,
    Shape,
    Topology,
    create_topology,
    decode_topology,
    encode_topology,
    member_options,
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
    ],
)
def test_number_out_of_range_is_refused(numbers: dict[str, int], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        Shape(**numbers)


def test_master_without_slaves_does_not_replicate() -> None:
    assert settings_of(topology(replicas=1), "broker-b") == {
        "KOUROU_BROKER_CLUSTER_NAME": "DefaultCluster",
        "KOUROU_BROKER_BROKER_NAME": "broker-b",
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
        {"members": []},
        {"members": [{"name": "x"}]},
        {"members": [{"role": "king"}]},
    ],
)
def test_damaged_file_is_refused(change: dict[str, object]) -> None:
    text = json.dumps(json.loads(encode_topology(topology())) | change)

    with pytest.raises(ValueError, match=r"."):
        decode_topology(text)
