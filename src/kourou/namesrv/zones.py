"""The part of a route that lies in one zone, for clients that ask for it.

A broker name without a master is kept whatever its zone: its slaves are all there is to read.

Source: ZoneRouteRPCHook.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kourou.model.route import MASTER_ID, TopicRoute

ZONE_NAME: Final = "__ZONE_NAME"
"""Header field: a broker's zone in a registration, the wanted one in a request for a route."""

_ZONE_MODE: Final = "__ZONE_MODE"


def wanted_zone(fields: Mapping[str, str]) -> str | None:
    """Return the zone to which a request's header fields narrow its route; None: to none."""
    zone = fields.get(ZONE_NAME, "").strip()
    return zone if zone and fields.get(_ZONE_MODE, "").lower() == "true" else None


def within_zone(route: TopicRoute, zone: str) -> TopicRoute:
    """Return the brokers of `zone`, names in any case, and their queues."""
    brokers = tuple(
        broker
        for broker in route.broker_datas
        if MASTER_ID not in broker.broker_addrs or (broker.zone_name or "").lower() == zone.lower()
    )
    names = {broker.broker_name for broker in brokers}
    queues = tuple(data for data in route.queue_datas if data.broker_name in names)
    return replace(route, broker_datas=brokers, queue_datas=queues)
