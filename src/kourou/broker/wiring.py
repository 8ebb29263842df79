"""Builds the request handlers and fast paths from the components that they use."""

from __future__ import annotations

from kourou.broker.administration.admin_handlers import build_admin_handlers
from kourou.broker.administration.admin_topics import TopicAdminHandlers
from kourou.broker.administration.config_handlers import ConfigHandlers
from kourou.broker.administration.stats_handlers import StatsHandlers
from kourou.broker.administration.unused_groups import UnusedGroups
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
from kourou.protocol.codes import RequestCode
from kourou.remoting.connection import FastPath
from kourou.remoting.steady_time import steady_ms


def build_slow_consumers(components: Components) -> SlowConsumers:
    """Build the check for groups that are far behind."""
    return SlowConsumers(
        components.context.live_config,
        groups=components.context.groups,
        clients=components.context.clients,
        offsets=components.tables.offsets,
        store=components.context.store.reader,
        offload=components.context.offload,
    )


def build_unused_groups(components: Components) -> UnusedGroups:
    """Build the removal of unused groups."""
    tables = components.tables
    return UnusedGroups(
        components.context.live_config,
        groups=tables.groups,
        topics=tables.topics,
        offsets=tables.offsets,
        clients=components.context.clients,
        store=components.context.store,
        on_topic_deleted=components.held_pulls.on_topic_deleted,
    )


def build_handlers(components: Components) -> Handlers:
    """Build the handlers of all requests."""
    context, tables = components.context, components.tables
    checks = SendChecks(context, components.queue_locks)
    return Handlers(
        sends=SendHandlers(
            context,
            checks,
            components.transactions,
            components.timers.placement(context.random),
        ),
        replies=ReplyHandler(context, checks),
        send_backs=_build_send_backs(components),
        stats=_build_stats(components),
        configs=ConfigHandlers(
            components.context.live_config, components.context.disk.root, components.context.clock
        ),
        pulls=components.pulls,
        clients=ClientHandlers(
            components.context.live_config,
            components.context.clients,
            tables.groups,
            tables.topics,
            components.subscriptions,
            components.context.later,
        ),
        locks=LockHandlers(components.queue_locks, tables.topics),
        assignments=_build_assignments(components),
        offsets=OffsetHandlers(
            groups=tables.groups,
            topics=tables.topics,
            offsets=tables.offsets,
            store=components.context.store.reader,
            resident_bytes=components.context.config.store.resident_bytes,
        ),
        queries=QueryHandlers(
            components.context.store, components.context.offload, components.context.later
        ),
        messages=MessageQueryHandler(
            tables.topics,
            components.context.store,
            components.context.offload,
            components.context.later,
        ),
        topics=_build_admin_topics(components),
        transactions=components.transactions,
        timers=_build_timers(components),
        admin=build_admin_handlers(components),
    )


def build_fast_paths(components: Components) -> dict[int, FastPath]:
    """Build the fast paths of sends, batches, pulls and commits of transactions, by code."""
    tables = components.tables
    context, transactions = components.context, components.transactions
    pulls = FastPull(
        components.context.live_config,
        checks=components.pull_checks,
        offsets=tables.offsets,
        store=components.context.store,
        held=components.held_pulls,
        stats=components.context.stats,
        general_path=components.pulls.serve_again,
    )
    return {
        RequestCode.SEND_MESSAGE_V2: FastSend(context, transactions, transactions.fast_end),
        RequestCode.SEND_BATCH_MESSAGE: FastBatch(context),
        RequestCode.PULL_MESSAGE: pulls,
        RequestCode.END_TRANSACTION: transactions.fast_end,
    }


def _build_assignments(components: Components) -> AssignmentHandlers:
    config, tables = components.context.config, components.tables
    return AssignmentHandlers(
        components.context.live_config,
        broker_name=config.broker_name,
        topics=tables.topics,
        groups=tables.groups,
        clients=components.context.clients,
        modes=tables.modes,
        routes=AssignmentRoutes(
            config.namesrv_addr, config.broker_name, tables.topics, components.pool, steady_ms
        ),
        later=components.context.later,
        is_pop_served=IS_POP_SERVED,
    )


def _build_timers(components: Components) -> TimerHandlers:
    return TimerHandlers(
        config=components.context.live_config,
        topics=components.context.topics,
        timers=components.timers,
        placement=components.timers.placement(components.context.random),
        commit=components.context.commit,
        stats=components.context.stats,
        clock=components.context.clock,
        store_host=components.context.store_host,
    )


def _build_send_backs(components: Components) -> SendBackHandler:
    return SendBackHandler(
        config=components.context.live_config,
        topics=components.context.topics,
        groups=components.context.groups,
        store=components.context.store,
        commit=components.context.commit,
        later=components.context.later,
        stats=components.context.stats,
        offload=components.context.offload,
        clock=components.context.clock,
        random=components.context.random,
        store_host=components.context.store_host,
    )


def _build_admin_topics(components: Components) -> TopicAdminHandlers:
    return TopicAdminHandlers(
        config=components.context.live_config,
        topics=components.context.topics,
        offsets=components.tables.offsets,
        store=components.context.store,
        queue_deletion=components.queue_deletion,
        offload=components.context.offload,
        later=components.context.later,
        stats=components.context.stats,
        on_deleted=components.held_pulls.on_topic_deleted,
    )


def _build_stats(components: Components) -> StatsHandlers:
    return StatsHandlers(
        stats=components.context.stats,
        store=components.context.store,
        disk=components.context.disk,
        commit=components.context.commit,
        delay=components.delay,
        timers=components.timers,
        later=components.context.later,
        offload=components.context.offload,
        clock=components.context.clock,
    )
