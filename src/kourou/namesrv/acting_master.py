"""Acting masters: slaves that routes show as master, so that a lost master's messages are readable.

Source: RouteInfoManager.pickupTopicRouteData, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kourou.model.route import MASTER_ID, BrokerData, TopicRoute
from kourou.model.topic import is_writable

_SYNC_MEMBER_PREFIX: Final = "rmq_sys_SYNC_BROKER_MEMBER_"
"""Prefix of the topics by which brokers look up their own group; these routes stay unchanged."""


def with_acting_masters(topic: str, route: TopicRoute) -> TopicRoute:
    """Return the route with an acting master for each broker name without a master.

    The acting master is the slave with the lowest id, shown under id 0. A broker name gets one only
    if its slaves allow it (`enable_acting_master`) and its queues are not writable.
    """
    if topic.startswith(_SYNC_MEMBER_PREFIX):
        return route
    unwritable = {data.broker_name for data in route.queue_datas if not is_writable(data.perm)}
    brokers = tuple(
        _acting(broker) if broker.broker_name in unwritable else broker
        for broker in route.broker_datas
    )
    return replace(route, broker_datas=brokers)


def _acting(broker: BrokerData) -> BrokerData:
    addresses = dict(broker.broker_addrs)
    if not addresses or MASTER_ID in addresses or not broker.enable_acting_master:
        return broker
    return replace(broker, broker_addrs={MASTER_ID: addresses.pop(min(addresses)), **addresses})
