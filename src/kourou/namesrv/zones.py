"""Filter of a route by zone, for clients that ask for it.

A broker name without a master stays in the route whatever its zone, because only its slaves can
still be read.

Source: ZoneRouteRPCHook.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kourou.model.route import MASTER_ID, TopicRoute

ZONE_NAME: Final = "__ZONE_NAME"
"""Header field: the broker's zone in a registration, the requested zone in a route request."""

_ZONE_MODE: Final = "__ZONE_MODE"


def wanted_zone(fields: Mapping[str, str]) -> str | None:
    """Return the zone that the header fields of a route request ask for; None for all zones."""
    zone = fields.get(ZONE_NAME, "").strip()
    return zone if zone and fields.get(_ZONE_MODE, "").lower() == "true" else None


def within_zone(route: TopicRoute, zone: str) -> TopicRoute:
    """Return the route reduced to the brokers of `zone` (case-insensitive) and their queues."""
    brokers = tuple(
        broker
        for broker in route.broker_datas
        if MASTER_ID not in broker.broker_addrs or (broker.zone_name or "").lower() == zone.lower()
    )
    names = {broker.broker_name for broker in brokers}
    queues = tuple(data for data in route.queue_datas if data.broker_name in names)
    return replace(route, broker_datas=brokers, queue_datas=queues)
