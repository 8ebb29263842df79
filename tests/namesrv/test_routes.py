"""Tests of the route table: registration, removal, and the refusals of RocketMQ."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kourou.errors import RemoteSystemError
from kourou.model.route import TopicRoute
from kourou.model.topic import TopicConfig
from kourou.namesrv.broker_identity import BrokerIdentity, MasterAddresses
from kourou.namesrv.routes import RouteTable
from kourou.protocol.data_version import DataVersion
from kourou.protocol.topic_table import TopicConfigTable

MASTER = BrokerIdentity("C", "a", 0, "10.0.0.1:10911", "10.0.0.1:10912")
SLAVE = BrokerIdentity("C", "a", 1, "10.0.0.2:10911", "10.0.0.2:10912", enable_acting_master=False)
OTHER = BrokerIdentity("D", "b", 0, "10.0.0.3:10911")
STAND_IN = BrokerIdentity("C", "a", 1, "10.0.0.2:10911", enable_acting_master=True)


def topics(*names: str, counter: int = 1, state: int = 0, perm: int = 6) -> TopicConfigTable:
    configs = {name: TopicConfig(name, 4, 2, perm) for name in names}
    return TopicConfigTable(configs, DataVersion(counter, state, 5))


def route(table: RouteTable, topic: str) -> TopicRoute:
    found = table.route(topic)
    assert found is not None
    return found


def addresses(table: RouteTable, broker_name: str) -> dict[int, str]:
    data = table.cluster_info().brokers.get(broker_name)
    return {} if data is None else dict(data.broker_addrs)


@pytest.fixture
def table() -> RouteTable:
    """Return a table with one master and its two topics."""
    table = RouteTable()
    assert table.register(MASTER, topics("T", "U"), "m", 0) == MasterAddresses()
    return table


def test_registered_topic_is_routed(table: RouteTable) -> None:
    found = route(table, "T")

    (queues,) = found.queue_datas
    assert (queues.broker_name, queues.read_queue_nums, queues.write_queue_nums) == ("a", 4, 2)
    (broker,) = found.broker_datas
    assert (broker.cluster, broker.broker_name) == ("C", "a")
    assert broker.broker_addrs == {0: "10.0.0.1:10911"}
    assert table.queues.topics() == ["T", "U"]


def test_unknown_topic_is_not_routed(table: RouteTable) -> None:
    assert table.route("V") is None
    assert RouteTable().route("T") is None


def test_a_topic_on_two_brokers_names_both(table: RouteTable) -> None:
    table.register(OTHER, topics("T", "W"), "o", 0)

    assert {queues.broker_name for queues in route(table, "T").queue_datas} == {"a", "b"}
    assert {broker.broker_name for broker in route(table, "T").broker_datas} == {"a", "b"}
    assert table.cluster_info().clusters == {"C": ["a"], "D": ["b"]}
    assert table.topics_of_cluster("D") == ["T", "W"]
    assert table.topics_of_cluster("E") == []


def test_slave_joins_and_gets_its_master_addresses(table: RouteTable) -> None:
    assert table.register(SLAVE, topics("T", "X"), "s", 0) == MasterAddresses(
        "10.0.0.1:10912", "10.0.0.1:10911"
    )
    assert addresses(table, "a") == {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}
    assert table.route("X") is None, "a slave's topics are its master's"


def test_slave_without_a_master_gets_no_addresses() -> None:
    table = RouteTable()
    assert table.register(SLAVE, topics("T", "X"), "s", 0) == MasterAddresses()
    assert table.queues.topics() == ["T", "X"], "the lowest id brings its topics where no master is"


def test_slave_without_acting_master_option_registers_no_topics() -> None:
    table = RouteTable()
    table.register(BrokerIdentity("C", "a", 1, "h:1"), topics("T", "X"), "s", 0)
    assert table.queues.topics() == []


def test_acting_master_is_not_writable() -> None:
    table = RouteTable()
    table.register(STAND_IN, topics("T", "X"), "s", 0)
    assert route(table, "T").queue_datas[0].perm == 4


def test_acting_master_that_becomes_master_is_writable_again() -> None:
    table = RouteTable()
    table.register(STAND_IN, topics("T", "X"), "s", 0)
    promoted = BrokerIdentity("C", "a", 0, STAND_IN.address, enable_acting_master=True)
    table.register(promoted, topics("T", "X"), "s", 1)
    assert route(table, "T").queue_datas[0].perm == 6


def test_a_changed_version_replaces_topics_and_an_equal_one_does_not(table: RouteTable) -> None:
    table.register(MASTER, topics("T", "U", perm=4), "m", 1)
    assert route(table, "T").queue_datas[0].perm == 6
    table.register(MASTER, topics("T", "U", counter=2, perm=4), "m", 2)
    assert route(table, "T").queue_datas[0].perm == 4


def test_new_topic_is_entered_with_an_equal_version(table: RouteTable) -> None:
    table.register(MASTER, topics("T", "V"), "m", 1)
    assert table.queues.topics() == ["T", "U", "V"]


def test_topics_that_are_not_mentioned_stay(table: RouteTable) -> None:
    table.register(MASTER, topics("V", counter=2), "m", 1)
    assert table.queues.topics() == ["T", "U", "V"]


def test_a_single_change_of_an_unknown_broker_is_refused_and_changes_nothing() -> None:
    table = RouteTable()
    with pytest.raises(RemoteSystemError, match="register broker failed"):
        table.register(MASTER, topics("T"), "m", 0)

    assert table.queues.topics() == []
    assert not table.cluster_info().brokers
    assert table.data_version("C", MASTER.address) is None


def test_topics_are_removed_with_the_last_address(table: RouteTable) -> None:
    table.register(OTHER, topics("T", "W"), "o", 0)
    table.unregister("C", MASTER.address)

    assert table.queues.topics() == ["T", "W"]
    assert [queues.broker_name for queues in route(table, "T").queue_datas] == ["b"]
    assert table.cluster_info().clusters == {"D": ["b"]}


def test_a_lost_master_leaves_its_slaves_readable(table: RouteTable) -> None:
    table.register(SLAVE, topics("T", "U"), "s", 0)
    table.unregister("C", MASTER.address)

    assert route(table, "T").broker_datas[0].broker_addrs == {1: "10.0.0.2:10911"}
    assert route(table, "T").queue_datas[0].perm == 6


def test_queues_are_not_writable_while_a_slave_is_acting_master(
    table: RouteTable,
) -> None:
    table.register(STAND_IN, topics("T", "U"), "s", 0)
    table.unregister("C", MASTER.address)

    assert {route(table, topic).queue_datas[0].perm for topic in ("T", "U")} == {4}


def test_unregistering_an_unknown_broker_changes_nothing(table: RouteTable) -> None:
    table.unregister("C", "10.9.9.9:1")
    table.unregister("D", MASTER.address)
    assert table.queues.topics() == ["T", "U"]


def test_broker_is_removed_after_its_timeout(table: RouteTable) -> None:
    assert table.expire(120_000) == []
    assert table.expire(120_001) == [(MASTER, "m")]
    assert table.route("T") is None
    assert table.expire(999_999) == []


def test_a_broker_may_ask_for_a_shorter_timeout() -> None:
    table = RouteTable()
    hasty = BrokerIdentity("C", "a", 0, "h:1", timeout_ms=10_000)
    table.register(hasty, topics("T", "U"), "m", 0)
    assert table.expire(10_001) == [(hasty, "m")]


def test_refresh_extends_the_timeout(table: RouteTable) -> None:
    table.refresh("C", MASTER.address, 100_000)
    table.refresh("C", "10.9.9.9:1", 100_000)
    assert table.expire(200_000) == []


def test_broker_is_removed_with_its_connection(table: RouteTable) -> None:
    table.register(OTHER, topics("T", "W"), "o", 0)
    assert table.unregister_connection("m") == [MASTER]
    assert table.queues.topics() == ["T", "W"]
    assert table.unregister_connection("m") == []


def test_close_of_an_older_connection_removes_nothing(table: RouteTable) -> None:
    table.register(MASTER, topics("T", "U"), "m2", 1)
    assert table.unregister_connection("m") == []
    assert table.queues.topics() == ["T", "U"]


def test_a_restarted_broker_on_a_new_address_replaces_the_old(table: RouteTable) -> None:
    moved = BrokerIdentity("C", "a", 0, "10.0.0.9:10911")
    table.register(moved, topics("T", "U"), "m2", 1)
    assert addresses(table, "a") == {0: "10.0.0.9:10911"}

    table.unregister_connection("m")
    assert addresses(table, "a") == {0: "10.0.0.9:10911"}


def test_an_address_that_changes_its_id_is_listed_once(table: RouteTable) -> None:
    table.register(BrokerIdentity("C", "a", 2, MASTER.address), topics("T", "U"), "m", 1)
    assert addresses(table, "a") == {2: MASTER.address}


def test_address_with_a_new_broker_name_leaves_its_old_name(table: RouteTable) -> None:
    table.register(BrokerIdentity("C", "z", 0, MASTER.address), topics("Z", "Y"), "m", 1)
    assert addresses(table, "a") == {}
    assert table.queues.topics() == ["Y", "Z"]


def test_registration_with_an_older_state_is_ignored() -> None:
    table = RouteTable()
    table.register(MASTER, topics("T", "U", state=2), "m", 0)
    outdated = BrokerIdentity("C", "a", 0, "10.0.0.9:10911")
    assert table.register(outdated, topics("T", "V", state=1), "m2", 1) == MasterAddresses()

    assert addresses(table, "a") == {0: MASTER.address}
    assert table.route("V") is None
    assert table.data_version("C", outdated.address) is None


def test_last_registered_data_version_is_returned(table: RouteTable) -> None:
    assert table.data_version("C", MASTER.address) == DataVersion(1, 0, 5)
    assert table.data_version("C", "10.9.9.9:1") is None


def test_deleted_topic_is_absent_until_a_broker_registers_it(table: RouteTable) -> None:
    table.delete_topic("T")
    table.delete_topic("never")
    assert table.queues.topics() == ["U"]
    table.register(MASTER, topics("T", "U"), "m", 1)
    assert table.queues.topics() == ["T", "U"]


def test_a_topic_may_be_deleted_in_one_cluster_only(table: RouteTable) -> None:
    table.register(OTHER, topics("T", "W"), "o", 0)
    table.delete_topic("T", "C")
    assert [queues.broker_name for queues in route(table, "T").queue_datas] == ["b"]


def test_more_brokers_than_allowed_are_refused_and_known_ones_refreshed() -> None:
    table = RouteTable(brokers_max=1)
    table.register(MASTER, topics("T", "U"), "m", 0)
    with pytest.raises(RemoteSystemError, match="brokers_max, 1, is reached"):
        table.register(OTHER, topics("T", "W"), "o", 0)
    table.register(MASTER, topics("T", "U"), "m", 1)
    assert table.queues.topics() == ["T", "U"]


def test_more_topics_than_allowed_are_refused_and_deleted_ones_make_room() -> None:
    table = RouteTable(topic_entries_max=3)
    table.register(MASTER, topics("T", "U"), "m", 0)
    with pytest.raises(RemoteSystemError, match="topic_entries_max, 3, is reached"):
        table.register(OTHER, topics("T", "W"), "o", 0)
    assert table.cluster_info().clusters == {"C": ["a"]}

    table.delete_topic("U")
    table.register(OTHER, topics("T", "W"), "o", 0)
    assert table.queues.topics() == ["T", "W"]


@pytest.mark.parametrize(
    ("identity", "topic"),
    [
        (replace(MASTER, cluster="x" * 256), "T"),
        (replace(MASTER, broker_name="x" * 256), "T"),
        (replace(MASTER, address="x" * 256), "T"),
        (MASTER, "x" * 256),
    ],
)
def test_a_name_too_long_is_refused_with_the_limit(identity: BrokerIdentity, topic: str) -> None:
    table = RouteTable()
    with pytest.raises(RemoteSystemError, match="has 256 characters, the limit is 255"):
        table.register(identity, topics("U", topic), "m", 0)
    assert table.cluster_info().clusters == {}
