"""Builds the request handlers and fast paths from the components that they use."""

from __future__ import annotations

from kourou.broker.administration.admin_handlers import build_admin_handlers
from kourou.broker.administration.admin_topics import TopicAdminHandlers
from kourou.broker.administration.config_handlers import ConfigHandlers
from kourou.broker.administration.stats_handlers import StatsHandlers
from kourou.broker.administration.unused_groups import UnusedGroups
from kourou.broker.advertised import store_host
from kourou.broker.client_calls import call_connection
from kourou.broker.client_handlers import ClientHandlers
from kourou.broker.components import Components
from kourou.broker.consuming.assignment_handlers import IS_POP_SERVED, AssignmentHandlers
from kourou.broker.consuming.assignment_routes import AssignmentRoutes
from kourou.broker.consuming.lock_handlers import LockHandlers
from kourou.broker.consuming.offset_handlers import OffsetHandlers
from kourou.broker.consuming.retry import SendBackHandler
from kourou.broker.handlers import Handlers
from kourou.broker.pulling.fast_pull import FastPull
from kourou.broker.pulling.query import QueryHandlers
from kourou.broker.pulling.query_messages import MessageQueryHandler
from kourou.broker.pulling.slow_consumers import SlowConsumers
from kourou.broker.sending.fast_batch import FastBatch
from kourou.broker.sending.fast_send import FastSend
from kourou.broker.sending.reply import ReplyHandler
from kourou.broker.sending.send import SendHandlers
from kourou.broker.sending.send_checks import SendChecks
from kourou.broker.timer.timer_handlers import TimerHandlers
from kourou.model.msgid import UniqueIdGenerator
from kourou.protocol.codes import RequestCode
from kourou.remoting.connection import FastPath
from kourou.remoting.steady_time import steady_ms


def build_slow_consumers(components: Components) -> SlowConsumers:
    """Build the check for groups that are far behind."""
    return SlowConsumers(
        components.live,
        groups=components.tables.groups,
        clients=components.clients,
        offsets=components.tables.offsets,
        store=components.store.reader,
        offload=components.runtime.offload,
    )


def build_unused_groups(components: Components) -> UnusedGroups:
    """Build the removal of unused groups."""
    tables = components.tables
    return UnusedGroups(
        components.live,
        groups=tables.groups,
        topics=tables.topics,
        offsets=tables.offsets,
        clients=components.clients,
        store=components.store,
        on_topic_deleted=components.held_pulls.on_topic_deleted,
    )


def build_handlers(components: Components) -> Handlers:
    """Build the handlers of all requests."""
    tables = components.tables
    return Handlers(
        sends=_build_sends(components),
        replies=_build_replies(components),
        send_backs=_build_send_backs(components),
        stats=_build_stats(components),
        configs=ConfigHandlers(components.live, components.disk.root, components.runtime.clock),
        pulls=components.pulls,
        clients=ClientHandlers(
            components.live,
            components.clients,
            tables.groups,
            tables.topics,
            components.subscriptions,
            components.later,
        ),
        locks=LockHandlers(components.queue_locks, tables.topics),
        assignments=_build_assignments(components),
        offsets=OffsetHandlers(
            groups=tables.groups,
            topics=tables.topics,
            offsets=tables.offsets,
            store=components.store.reader,
            resident_bytes=components.config.store.resident_bytes,
        ),
        queries=QueryHandlers(components.store, components.runtime.offload, components.later),
        messages=MessageQueryHandler(
            tables.topics, components.store, components.runtime.offload, components.later
        ),
        topics=_build_admin_topics(components),
        transactions=components.transactions,
        timers=_build_timers(components),
        admin=build_admin_handlers(components),
    )


def build_fast_paths(components: Components) -> dict[int, FastPath]:
    """Build the fast paths of sends, batches, pulls and commits of transactions, by code."""
    tables = components.tables
    sends = FastSend(
        config=components.live,
        topics=tables.topics,
        store=components.store,
        commit=components.commit,
        stats=components.stats,
        clock=components.runtime.clock,
        unique_ids=_build_unique_ids(components),
        transactions=components.transactions,
        ends=components.transactions.fast_end,
        store_host=store_host(components.config),
    )
    batches = FastBatch(
        config=components.live,
        topics=tables.topics,
        store=components.store,
        commit=components.commit,
        stats=components.stats,
        clock=components.runtime.clock,
        unique_ids=_build_unique_ids(components),
        store_host=store_host(components.config),
    )
    pulls = FastPull(
        components.live,
        checks=components.pull_checks,
        offsets=tables.offsets,
        store=components.store,
        held=components.held_pulls,
        stats=components.stats,
        general_path=components.pulls.serve_again,
    )
    return {
        RequestCode.SEND_MESSAGE_V2: sends,
        RequestCode.SEND_BATCH_MESSAGE: batches,
        RequestCode.PULL_MESSAGE: pulls,
        RequestCode.END_TRANSACTION: components.transactions.fast_end,
    }


def _build_assignments(components: Components) -> AssignmentHandlers:
    config, tables = components.config, components.tables
    return AssignmentHandlers(
        components.live,
        broker_name=config.broker_name,
        topics=tables.topics,
        groups=tables.groups,
        clients=components.clients,
        modes=tables.modes,
        routes=AssignmentRoutes(
            config.namesrv_addr, config.broker_name, tables.topics, components.pool, steady_ms
        ),
        later=components.later,
        is_pop_served=IS_POP_SERVED,
    )


def _build_sends(components: Components) -> SendHandlers:
    topics, groups = components.tables.topics, components.tables.groups
    return SendHandlers(
        config=components.live,
        topics=topics,
        checks=SendChecks(
            components.live, topics, groups, components.clients, components.queue_locks
        ),
        commit=components.commit,
        later=components.later,
        stats=components.stats,
        clock=components.runtime.clock,
        random=components.runtime.random,
        unique_ids=_build_unique_ids(components),
        offload=components.runtime.offload,
        transactions=components.transactions,
        timers=components.timers.placement(components.runtime.random),
        store_host=store_host(components.config),
    )


def _build_timers(components: Components) -> TimerHandlers:
    return TimerHandlers(
        config=components.live,
        topics=components.tables.topics,
        timers=components.timers,
        placement=components.timers.placement(components.runtime.random),
        commit=components.commit,
        stats=components.stats,
        clock=components.runtime.clock,
        store_host=store_host(components.config),
    )


def _build_replies(components: Components) -> ReplyHandler:
    topics, groups = components.tables.topics, components.tables.groups
    return ReplyHandler(
        config=components.live,
        topics=topics,
        checks=SendChecks(components.live, topics, groups, components.clients),
        clients=components.clients,
        call_client=call_connection,
        commit=components.commit,
        later=components.later,
        stats=components.stats,
        clock=components.runtime.clock,
        random=components.runtime.random,
        store_host=store_host(components.config),
    )


def _build_unique_ids(components: Components) -> UniqueIdGenerator:
    """Build a generator of message ids; a random number makes its ids unique."""
    host, random = store_host(components.config), components.runtime.random
    address = host[0] if host is not None else "127.0.0.1"
    return UniqueIdGenerator(address, random.getrandbits(16), lambda: random.getrandbits(32))


def _build_send_backs(components: Components) -> SendBackHandler:
    return SendBackHandler(
        config=components.live,
        topics=components.tables.topics,
        groups=components.tables.groups,
        store=components.store,
        commit=components.commit,
        later=components.later,
        stats=components.stats,
        offload=components.runtime.offload,
        clock=components.runtime.clock,
        random=components.runtime.random,
        store_host=store_host(components.config),
    )


def _build_admin_topics(components: Components) -> TopicAdminHandlers:
    return TopicAdminHandlers(
        config=components.live,
        topics=components.tables.topics,
        offsets=components.tables.offsets,
        store=components.store,
        queue_deletion=components.queue_deletion,
        offload=components.runtime.offload,
        later=components.later,
        stats=components.stats,
        on_deleted=components.held_pulls.on_topic_deleted,
    )


def _build_stats(components: Components) -> StatsHandlers:
    return StatsHandlers(
        stats=components.stats,
        store=components.store,
        disk=components.disk,
        commit=components.commit,
        delay=components.delay,
        timers=components.timers,
        later=components.later,
        offload=components.runtime.offload,
        clock=components.runtime.clock,
    )
