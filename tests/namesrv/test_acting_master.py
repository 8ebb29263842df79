"""Tests of acting masters in routes."""

from __future__ import annotations

import pytest

from kourou.model.route import BrokerData, QueueData, TopicRoute
from kourou.namesrv.routes import with_acting_masters


def route_of(addresses: dict[int, str], *, perm: int = 4, enabled: bool = True) -> TopicRoute:
    return TopicRoute((QueueData("a", 4, 4, perm),), (BrokerData("C", "a", addresses, enabled),))


def test_lowest_slave_is_shown_as_acting_master() -> None:
    route = with_acting_masters("T", route_of({2: "h:2", 3: "h:3"}))

    assert route.broker_datas[0].broker_addrs == {0: "h:2", 3: "h:3"}
    assert route.broker_datas[0].enable_acting_master


@pytest.mark.parametrize(
    "route",
    [
        route_of({0: "h:0", 2: "h:2"}),
        route_of({2: "h:2"}, enabled=False),
        route_of({2: "h:2"}, perm=6),
        route_of({}),
    ],
    ids=["a master lives", "not allowed", "still writable", "no address"],
)
def test_route_is_unchanged_without_acting_master(route: TopicRoute) -> None:
    assert with_acting_masters("T", route) == route


def test_sync_member_route_is_unchanged() -> None:
    route = route_of({2: "h:2"})

    assert with_acting_masters("rmq_sys_SYNC_BROKER_MEMBER_a", route) == route
