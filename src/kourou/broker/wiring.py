"""Joins the handlers of all requests to the parts that they use."""

from __future__ import annotations

import ipaddress

from kourou.broker.administration.admin_handlers import make_admin_handlers
from kourou.broker.administration.admin_topics import AdminTopicHandlers
from kourou.broker.administration.config_handlers import ConfigHandlers
from kourou.broker.client_handlers import ClientHandlers
from kourou.broker.config import BrokerConfig
from kourou.broker.handlers import Handlers
from kourou.broker.offset_handlers import OffsetHandlers
from kourou.broker.parts import Parts
from kourou.broker.query import QueryHandlers
from kourou.broker.query_messages import MessageQueryHandler
from kourou.broker.retry import SendBackHandler
from kourou.broker.send import SendHandlers
from kourou.broker.send_checks import SendChecks
from kourou.broker.statistics.stats_handlers import StatsHandlers
from kourou.model.host import Host
from kourou.remoting.network import parse_address


def make_handlers(parts: Parts) -> Handlers:
    """Return what serves requests."""
    tables = parts.tables
    return Handlers(
        sends=_sends(parts),
        send_backs=_send_backs(parts),
        stats=_stats(parts),
        configs=ConfigHandlers(parts.live, parts.disk.root, parts.runtime.clock),
        pulls=parts.pulls,
        clients=ClientHandlers(parts.clients, tables.groups, tables.topics, parts.later),
        offsets=OffsetHandlers(
            groups=tables.groups,
            topics=tables.topics,
            offsets=tables.offsets,
            store=parts.store,
            resident_bytes=parts.config.store.resident_bytes,
        ),
        queries=QueryHandlers(parts.store, parts.runtime.offload, parts.later),
        messages=MessageQueryHandler(
            tables.topics, parts.store, parts.runtime.offload, parts.later
        ),
        topics=_admin_topics(parts),
        admin=make_admin_handlers(parts),
    )


def _sends(parts: Parts) -> SendHandlers:
    topics, groups = parts.tables.topics, parts.tables.groups
    return SendHandlers(
        config=parts.live,
        topics=topics,
        checks=SendChecks(parts.live, topics, groups),
        commit=parts.commit,
        later=parts.later,
        stats=parts.stats,
        clock=parts.runtime.clock,
        random=parts.runtime.random,
        store_host=_store_host(parts.config),
    )


def _send_backs(parts: Parts) -> SendBackHandler:
    return SendBackHandler(
        config=parts.live,
        topics=parts.tables.topics,
        groups=parts.tables.groups,
        store=parts.store,
        commit=parts.commit,
        later=parts.later,
        stats=parts.stats,
        offload=parts.runtime.offload,
        clock=parts.runtime.clock,
        random=parts.runtime.random,
        store_host=_store_host(parts.config),
    )


def _admin_topics(parts: Parts) -> AdminTopicHandlers:
    return AdminTopicHandlers(
        config=parts.config,
        topics=parts.tables.topics,
        offsets=parts.tables.offsets,
        store=parts.store,
        queues=parts.queue_deletion,
        offload=parts.runtime.offload,
        later=parts.later,
        stats=parts.stats,
    )


def _stats(parts: Parts) -> StatsHandlers:
    return StatsHandlers(
        stats=parts.stats,
        store=parts.store,
        disk=parts.disk,
        commit=parts.commit,
        delay=parts.delay,
        later=parts.later,
        offload=parts.runtime.offload,
        clock=parts.runtime.clock,
    )


def _store_host(config: BrokerConfig) -> Host | None:
    """Return the address in message ids, if it is known without asking a connection."""
    if config.advertise is None:
        return None
    host, port = parse_address(config.advertise, config.port)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return None  # a message id holds an address, not a name
    return (host, port) if port else None
