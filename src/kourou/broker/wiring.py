"""Builds the request handlers and fast paths from the components that they use."""

from __future__ import annotations

from kourou.broker.administration.admin_handlers import make_admin_handlers
from kourou.broker.administration.admin_topics import AdminTopicHandlers
from kourou.broker.administration.config_handlers import ConfigHandlers
from kourou.broker.administration.stats_handlers import StatsHandlers
from kourou.broker.administration.unused_groups import UnusedGroups
from kourou.broker.advertised import store_host
from kourou.broker.client_calls import call_connection
from kourou.broker.client_handlers import ClientHandlers
from kourou.broker.consuming.assignment_handlers import IS_POP_SERVED, AssignmentHandlers
from kourou.broker.consuming.assignment_routes import AssignmentRoutes
from kourou.broker.consuming.lock_handlers import LockHandlers
from kourou.broker.consuming.offset_handlers import OffsetHandlers
from kourou.broker.consuming.retry import SendBackHandler
from kourou.broker.handlers import Handlers
from kourou.broker.parts import Parts
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
from kourou.model.msgid import UniqueIds
from kourou.protocol.codes import RequestCode
from kourou.remoting.connection import FastPath
from kourou.remoting.steady_time import steady_ms


def make_slow_consumers(parts: Parts) -> SlowConsumers:
    """Build the check for groups that are far behind."""
    return SlowConsumers(
        parts.live,
        groups=parts.tables.groups,
        clients=parts.clients,
        offsets=parts.tables.offsets,
        store=parts.store,
        offload=parts.runtime.offload,
    )


def make_unused_groups(parts: Parts) -> UnusedGroups:
    """Build the removal of unused groups."""
    tables = parts.tables
    return UnusedGroups(
        parts.live,
        groups=tables.groups,
        topics=tables.topics,
        offsets=tables.offsets,
        clients=parts.clients,
        store=parts.store,
        on_topic_deleted=parts.held_pulls.on_topic_deleted,
    )


def make_handlers(parts: Parts) -> Handlers:
    """Build the handlers of all requests."""
    tables = parts.tables
    return Handlers(
        sends=_sends(parts),
        replies=_replies(parts),
        send_backs=_send_backs(parts),
        stats=_stats(parts),
        configs=ConfigHandlers(parts.live, parts.disk.root, parts.runtime.clock),
        pulls=parts.pulls,
        clients=ClientHandlers(
            parts.live,
            parts.clients,
            tables.groups,
            tables.topics,
            parts.subscriptions,
            parts.later,
        ),
        locks=LockHandlers(parts.queue_locks, tables.topics),
        assignments=_assignments(parts),
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
        transactions=parts.transactions,
        timers=_timers(parts),
        admin=make_admin_handlers(parts),
    )


def make_fast_paths(parts: Parts) -> dict[int, FastPath]:
    """Build the fast paths of sends, batches, pulls and commits of transactions, by code."""
    tables = parts.tables
    sends = FastSend(
        config=parts.live,
        topics=tables.topics,
        store=parts.store,
        commit=parts.commit,
        stats=parts.stats,
        clock=parts.runtime.clock,
        unique_ids=_unique_ids(parts),
        transactions=parts.transactions,
        ends=parts.transactions.fast_end,
        store_host=store_host(parts.config),
    )
    batches = FastBatch(
        config=parts.live,
        topics=tables.topics,
        store=parts.store,
        commit=parts.commit,
        stats=parts.stats,
        clock=parts.runtime.clock,
        unique_ids=_unique_ids(parts),
        store_host=store_host(parts.config),
    )
    pulls = FastPull(
        parts.live,
        checks=parts.pull_checks,
        offsets=tables.offsets,
        store=parts.store,
        held=parts.held_pulls,
        stats=parts.stats,
        ordinary=parts.pulls.serve_again,
    )
    return {
        RequestCode.SEND_MESSAGE_V2: sends,
        RequestCode.SEND_BATCH_MESSAGE: batches,
        RequestCode.PULL_MESSAGE: pulls,
        RequestCode.END_TRANSACTION: parts.transactions.fast_end,
    }


def _assignments(parts: Parts) -> AssignmentHandlers:
    config, tables = parts.config, parts.tables
    return AssignmentHandlers(
        parts.live,
        broker_name=config.broker_name,
        topics=tables.topics,
        groups=tables.groups,
        clients=parts.clients,
        modes=tables.modes,
        routes=AssignmentRoutes(
            config.namesrv_addr, config.broker_name, tables.topics, parts.pool, steady_ms
        ),
        later=parts.later,
        is_pop_served=IS_POP_SERVED,
    )


def _sends(parts: Parts) -> SendHandlers:
    topics, groups = parts.tables.topics, parts.tables.groups
    return SendHandlers(
        config=parts.live,
        topics=topics,
        checks=SendChecks(parts.live, topics, groups, parts.clients, parts.queue_locks),
        commit=parts.commit,
        later=parts.later,
        stats=parts.stats,
        clock=parts.runtime.clock,
        random=parts.runtime.random,
        unique_ids=_unique_ids(parts),
        offload=parts.runtime.offload,
        transactions=parts.transactions,
        timers=parts.timers.sends(parts.runtime.random),
        store_host=store_host(parts.config),
    )


def _timers(parts: Parts) -> TimerHandlers:
    return TimerHandlers(
        config=parts.live,
        topics=parts.tables.topics,
        timers=parts.timers,
        sends=parts.timers.sends(parts.runtime.random),
        commit=parts.commit,
        stats=parts.stats,
        clock=parts.runtime.clock,
        store_host=store_host(parts.config),
    )


def _replies(parts: Parts) -> ReplyHandler:
    topics, groups = parts.tables.topics, parts.tables.groups
    return ReplyHandler(
        config=parts.live,
        topics=topics,
        checks=SendChecks(parts.live, topics, groups, parts.clients),
        clients=parts.clients,
        call_client=call_connection,
        commit=parts.commit,
        later=parts.later,
        stats=parts.stats,
        clock=parts.runtime.clock,
        random=parts.runtime.random,
        store_host=store_host(parts.config),
    )


def _unique_ids(parts: Parts) -> UniqueIds:
    """Build a generator of message ids; a random number makes its ids unique."""
    host, random = store_host(parts.config), parts.runtime.random
    address = host[0] if host is not None else "127.0.0.1"
    return UniqueIds(address, random.getrandbits(16), lambda: random.getrandbits(32))


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
        store_host=store_host(parts.config),
    )


def _admin_topics(parts: Parts) -> AdminTopicHandlers:
    return AdminTopicHandlers(
        config=parts.live,
        topics=parts.tables.topics,
        offsets=parts.tables.offsets,
        store=parts.store,
        queues=parts.queue_deletion,
        offload=parts.runtime.offload,
        later=parts.later,
        stats=parts.stats,
        on_deleted=parts.held_pulls.on_topic_deleted,
    )


def _stats(parts: Parts) -> StatsHandlers:
    return StatsHandlers(
        stats=parts.stats,
        store=parts.store,
        disk=parts.disk,
        commit=parts.commit,
        delay=parts.delay,
        timers=parts.timers,
        later=parts.later,
        offload=parts.runtime.offload,
        clock=parts.runtime.clock,
    )
