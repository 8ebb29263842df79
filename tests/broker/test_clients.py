"""The client table holds the members of groups, and reports changes of groups."""

from __future__ import annotations

import pytest

from kourou.broker import clients
from kourou.broker.clients import SUBSCRIPTIONS_MAX, Clients, ConsumerGroup, Member
from kourou.errors import InvalidParameterError, SystemBusyError
from kourou.filter.tags import parse_tags
from kourou.model.subscription import SubscriptionData
from kourou.protocol.clients import ConsumerData
from kourou.protocol.codes import LanguageCode
from kourou.testing.peers import FakePeer


class Table:
    """A client table, and the reported changes as pairs of group and number of members."""

    def __init__(self, **options: int) -> None:
        self.changes: list[tuple[str, int]] = []
        self.clients = Clients(self._on_changed, **options)

    def _on_changed(self, live: ConsumerGroup) -> None:
        self.changes.append((live.name, len(live.members)))

    def heartbeat(
        self,
        peer: FakePeer,
        *topics: str,
        group: str = "g",
        client_id: str = "c1",
        now_ms: int = 0,
        version: int = 1,
        fingerprint: int = 0,
        without_sub: bool = False,
    ) -> bool:
        subscriptions = [parse_tags(topic, "*", version) for topic in topics]
        return self.clients.register_consumer(
            Member(client_id, peer, LanguageCode.JAVA, 513, now_ms),
            ConsumerData(group, subscriptions=subscriptions),
            fingerprint=fingerprint,
            without_sub=without_sub,
        )


def test_on_changed_is_called_when_a_member_joins_or_leaves() -> None:
    table = Table()
    first, second = FakePeer(1), FakePeer(2)

    table.heartbeat(first, "T", client_id="a")
    table.heartbeat(second, "T", client_id="b")
    table.heartbeat(first, "T", client_id="a")
    table.clients.unregister_consumer(second, "g")

    assert table.changes == [("g", 1), ("g", 2), ("g", 1)]


def test_a_group_is_removed_with_its_last_member() -> None:
    table = Table()
    peer = FakePeer()
    table.heartbeat(peer, "T")

    table.clients.unregister_consumer(peer, "g")

    assert table.clients.consumer_group("g") is None
    assert table.clients.subscription("g", "T") is None
    assert table.changes == [("g", 1)]  # no call without members


def test_unregistering_an_unknown_member_changes_nothing() -> None:
    table = Table()
    table.heartbeat(FakePeer(1), "T")

    table.clients.unregister_consumer(FakePeer(2), "g")
    table.clients.unregister_consumer(FakePeer(2), "other")
    table.clients.unregister_producer(FakePeer(2), "p")

    assert table.changes == [("g", 1)]


def test_an_added_or_removed_topic_is_a_change_and_a_newer_version_is_not() -> None:
    table = Table()
    peer = FakePeer()
    table.heartbeat(peer, "T", version=1)

    table.heartbeat(peer, "T", version=2)
    table.heartbeat(peer, "T", "U", version=3)
    table.heartbeat(peer, "U", version=4)

    assert len(table.changes) == 3
    assert table.clients.subscription("g", "T") is None
    live = table.clients.consumer_group("g")
    assert live is not None
    assert [one.sub_version for one in live.subscriptions.values()] == [3 + 1]


def test_an_older_subscription_does_not_replace_a_newer_one() -> None:
    table = Table()
    table.heartbeat(FakePeer(1), "T", client_id="a", version=5)

    table.heartbeat(FakePeer(2), "T", client_id="b", version=4)

    held = table.clients.subscription("g", "T")
    assert held is not None
    assert held.sub_version == 5


def test_a_client_that_reconnects_is_listed_once() -> None:
    table = Table()
    old, new = FakePeer(1), FakePeer(2)
    table.heartbeat(old, "T", client_id="a")
    table.heartbeat(new, "T", client_id="a")
    live = table.clients.consumer_group("g")
    assert live is not None

    assert live.client_ids() == ["a"]
    table.clients.remove_connection(old)
    assert live.client_ids() == ["a"]


def test_a_closed_connection_leaves_all_its_groups() -> None:
    table = Table()
    closed, stays = FakePeer(1), FakePeer(2)
    for group in ("g", "h"):
        table.heartbeat(closed, "T", group=group, client_id="a")
        table.heartbeat(stays, "T", group=group, client_id="b")
    table.clients.register_producer(Member("a", closed, LanguageCode.JAVA, 513, 0), "p")
    table.changes.clear()

    table.clients.remove_connection(closed)
    table.clients.remove_connection(closed)

    assert table.changes == [("g", 1), ("h", 1)]
    assert table.clients.producers("p") == []


def test_members_without_heartbeats_expire() -> None:
    table = Table(expiry_ms=120_000)
    silent, alive = FakePeer(1), FakePeer(2)
    table.heartbeat(silent, "T", client_id="a", now_ms=0)
    table.heartbeat(alive, "T", client_id="b", now_ms=60_000)
    table.clients.register_producer(Member("a", silent, LanguageCode.JAVA, 513, 0), "p")
    table.changes.clear()

    assert table.clients.expire(120_000) == []
    assert table.clients.expire(120_001) == [silent]

    assert table.changes == [("g", 1)]
    assert table.clients.producers("p") == []


def test_the_number_of_clients_is_bounded_and_freed_by_leaving() -> None:
    table = Table(clients_max=2)
    first, second = FakePeer(1), FakePeer(2)
    table.heartbeat(first, "T", client_id="a")
    table.clients.register_producer(Member("a", first, LanguageCode.JAVA, 513, 0), "p")

    with pytest.raises(SystemBusyError, match="clientsMax"):
        table.heartbeat(second, "T", client_id="b")
    with pytest.raises(SystemBusyError):
        table.clients.register_producer(Member("b", second, LanguageCode.JAVA, 513, 0), "p")
    table.heartbeat(first, "T", client_id="a")  # a registered client may renew
    table.clients.unregister_producer(first, "p")
    table.heartbeat(second, "T", client_id="b")

    live = table.clients.consumer_group("g")
    assert live is not None
    assert live.client_ids() == ["a", "b"]


def test_a_heartbeat_with_too_many_subscriptions_changes_nothing() -> None:
    table = Table()
    many = [SubscriptionData(f"T{number}") for number in range(SUBSCRIPTIONS_MAX + 1)]

    with pytest.raises(InvalidParameterError, match="1001"):
        table.clients.register_consumer(
            Member("a", FakePeer(), LanguageCode.JAVA, 513, 0),
            ConsumerData("g", subscriptions=many),
        )

    assert table.clients.consumer_group("g") is None


def test_a_short_heartbeat_keeps_the_subscriptions_of_the_same_fingerprint() -> None:
    table = Table()
    peer = FakePeer()

    assert not table.heartbeat(peer, "T", fingerprint=7)
    assert not table.heartbeat(peer, fingerprint=7, without_sub=True)

    assert table.clients.subscription("g", "T") is not None
    assert len(table.changes) == 1


def test_a_short_heartbeat_with_another_fingerprint_requests_a_full_one() -> None:
    table = Table()
    peer, other = FakePeer(1), FakePeer(2)

    assert table.heartbeat(peer, fingerprint=7, without_sub=True)  # as after a restart
    table.heartbeat(peer, "T", fingerprint=7)
    assert table.heartbeat(other, "U", client_id="b", fingerprint=8)  # replaced the other client's
    assert table.heartbeat(peer, fingerprint=7, without_sub=True)
    table.heartbeat(other, "U", client_id="b")  # the older form has no fingerprint to compare
    assert table.heartbeat(other, client_id="b", fingerprint=8, without_sub=True)


def test_names_of_clients_are_bounded() -> None:
    table = Table()

    with pytest.raises(InvalidParameterError, match="client id of 2000 characters; at most 1024"):
        table.heartbeat(FakePeer(1), "T", client_id="x" * 2000)
    with pytest.raises(InvalidParameterError, match="producer group of 2000 characters"):
        table.clients.register_producer(
            Member("c", FakePeer(1), LanguageCode.JAVA, 513, 0), "x" * 2000
        )
    assert table.clients.consumer_group("g") is None


def test_the_memory_of_subscriptions_is_bounded_and_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clients, "SUBSCRIPTION_BYTES_MAX", 1600)
    table = Table()
    peer = FakePeer(1)
    table.heartbeat(peer, "T1", "T2", "T3", group="a")  # 503 or so each

    with pytest.raises(SystemBusyError, match="502 more exceed the limit of 1600"):
        table.heartbeat(peer, "U", group="b")
    table.heartbeat(peer, "T1", "T2", "T3", group="a")
    table.heartbeat(peer, group="c", without_sub=True)
    table.clients.remove_connection(peer)
    table.heartbeat(peer, "U", group="b")


def test_the_size_of_a_held_newer_subscription_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "SUBSCRIPTION_BYTES_MAX", 10_000)
    table = Table()
    subscription = SubscriptionData("T", "x" * 8000, sub_version=2)
    member = Member("c", FakePeer(1), LanguageCode.JAVA, 513, 0)
    table.clients.register_consumer(member, ConsumerData("a", subscriptions=[subscription]))
    table.heartbeat(FakePeer(1), "T", group="a", version=1)

    with pytest.raises(SystemBusyError, match="exceed the limit of"):
        table.clients.register_consumer(member, ConsumerData("b", subscriptions=[subscription]))
