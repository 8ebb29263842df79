"""Builds the request handlers and fast paths from the components that they use."""

from __future__ import annotations

from collections.abc import Callable

from kourou.broker.administration.admin_handlers import build_admin_handlers
from kourou.broker.administration.admin_topics import TopicAdminHandlers
from kourou.broker.administration.config_handlers import ConfigHandlers
from kourou.broker.administration.replica_handlers import ReplicaHandlers, ReplicaState
from kourou.broker.administration.stats_handlers import StatsHandlers
from kourou.broker.administration.topic_deletion import TopicDeletion
from kourou.broker.administration.unused_groups import UnusedGroups
from kourou.broker.client_handlers import ClientHandlers
from kourou.broker.components import Components
from kourou.broker.consuming.assignment_handlers import AssignmentHandlers
from kourou.broker.consuming.assignment_routes import AssignmentRoutes
from kourou.broker.consuming.lock_handlers import LockHandlers
from kourou.broker.consuming.offset_handlers import OffsetHandlers
from kourou.broker.consuming.retry import SendBackHandler
from kourou.broker.handlers import SLAVE_UNREADABLE, Handlers, guard_changes, guard_reads
from kourou.broker.pulling.fast_pull import FastPull
from kourou.broker.pulling.query import MessageQueryHandler, QueryHandlers
from kourou.broker.pulling.slow_consumers import SlowConsumers
from kourou.broker.replication.pre_online import PreOnline, TakenBack
from kourou.broker.sending.fast_batch import FastBatch
from kourou.broker.sending.fast_send import FastSend
from kourou.broker.sending.local_sends import LocalSends
from kourou.broker.sending.plain_sends import SendCache
from kourou.broker.sending.reply import ReplyHandler
from kourou.broker.sending.send import SendHandlers
from kourou.broker.sending.send_checks import SendChecks
from kourou.broker.timer.timer_handlers import TimerHandlers
from kourou.protocol.brokers import TimerCheckPoint
from kourou.protocol.codes import RequestCode
from kourou.remoting.connection import Connection, FastPath
from kourou.remoting.dispatch import Handler
from kourou.remoting.network import Address
from kourou.remoting.steady_time import steady_ms


def build_slow_consumers(components: Components) -> SlowConsumers:
    """Build the check for groups that are far behind."""
    return SlowConsumers(
        components.context, components.tables.offsets, components.context.store.reader
    )


def build_unused_groups(components: Components) -> UnusedGroups:
    """Build the removal of unused groups."""
    return UnusedGroups(
        components.context, components.tables.offsets, components.held_pulls.on_topic_deleted
    )


def build_pre_online(components: Components) -> PreOnline:
    """Build what a master that returns asks its slaves for."""
    reader, offsets = components.context.store.reader, components.tables.offsets
    return PreOnline(
        components.context.config,
        components.members,
        components.pool,
        reader.synced_position,
        TakenBack(
            lambda found: offsets.advance_to(found, reader.max_offset),
            components.delay.advance_to,
            components.timers.handover.note_elsewhere,
            components.popping.take_kept_acks,
        ),
    )


def build_handlers(components: Components) -> Handlers:
    """Build the handlers of all requests."""
    context, tables, timers = components.context, components.tables, components.timers
    checks = SendChecks(context, components.queue_locks)
    placement = timers.placement(context.random)
    deletion = TopicDeletion(
        context,
        tables.offsets,
        tables.order_infos,
        components.queue_deletion,
        components.held_pulls.on_topic_deleted,
    )
    return Handlers(
        sends=SendHandlers(context, checks, components.transactions, placement),
        replies=ReplyHandler(context, checks),
        send_backs=SendBackHandler(context),
        stats=StatsHandlers(
            context, components.delay, timers, components.popping, components.ha_status
        ),
        replicas=ReplicaHandlers(context, _replica_state(components)),
        configs=ConfigHandlers(context.live_config, context.disk.root, context.clock),
        pulls=components.pulls,
        clients=ClientHandlers(context, components.subscriptions),
        locks=LockHandlers(
            components.queue_locks, context.topics, context.later, tables.locks.persist
        ),
        assignments=_build_assignments(components),
        offsets=OffsetHandlers(context, tables.offsets),
        queries=QueryHandlers(context),
        messages=MessageQueryHandler(context),
        topics=TopicAdminHandlers(context, tables.offsets, deletion),
        transactions=components.transactions,
        timers=TimerHandlers(context, timers, placement, _check_point(components)),
        popping=components.popping,
        admin=build_admin_handlers(components, deletion),
    )


def handlers_by_code(components: Components, handlers: Handlers) -> dict[int, Handler]:
    """Return request code -> handler, as the role of the broker permits."""
    keeper = components.keeper
    if keeper is not None:
        return guard_changes(handlers.table(), lambda: keeper.fence_reason)
    slave = components.slave
    if slave is None:
        return handlers.table()
    acting = components.acting
    table = handlers.slave_table(
        may_act=acting is not None,
        pull_refusal=_slave_pull_refusal(components),
        pop_refusal=(lambda: "it never acts for it") if acting is None else acting.pop_refusal,
    )
    return table if components.replica is None else guard_reads(table, slave.unconfirmed_reason)


def _slave_pull_refusal(components: Components) -> Callable[[], str]:
    """Return what tells why a slave serves no pulls now; empty if it does."""
    is_readable = components.context.config.replication.slave_read_enable
    acting = components.acting

    def refusal() -> str:
        is_served = is_readable or (acting is not None and acting.master.serves_reads)
        return "" if is_served else SLAVE_UNREADABLE

    return refusal


def build_fast_paths(components: Components) -> dict[int, FastPath]:
    """Build the fast paths of sends, batches, pulls, pops and commits, by code.

    A slave has only that of pulls: it refuses the other requests, or serves them rarely.
    """
    context, transactions = components.context, components.transactions
    pulls = FastPull(
        context,
        checks=components.pull_checks,
        offsets=components.tables.offsets,
        held=components.held_pulls,
        general_path=components.pulls.serve_again,
    )
    slave = components.slave
    if slave is not None:
        served: FastPath = _unless(_slave_pull_refusal(components), pulls)
        if components.replica is not None:
            served = _unless(slave.unconfirmed_reason, served)
        return {RequestCode.PULL_MESSAGE: served}
    changes: dict[int, FastPath] = {
        RequestCode.SEND_MESSAGE_V2: FastSend(context, transactions, transactions.fast_end),
        RequestCode.SEND_BATCH_MESSAGE: FastBatch(context),
        RequestCode.END_TRANSACTION: transactions.fast_end,
        RequestCode.POP_MESSAGE: components.popping.fast_pops,  # and acks, by the same digits
    }
    if components.keeper is not None:
        keeper = components.keeper
        changes = {
            code: _unless(lambda: keeper.fence_reason, path) for code, path in changes.items()
        }
    return changes | {RequestCode.PULL_MESSAGE: pulls}


def build_local_sends(
    components: Components, born_host: Address, address: Address
) -> LocalSends | None:
    """Build the path of sends from this process; None if they must take a connection.

    Args:
        components: of the broker; one with a controller may be fenced, and has no such path.
        born_host: the sender's address, as a connection of its own would have it.
        address: the broker's, to which it would be connected.
    """
    if components.slave is not None or components.keeper is not None:
        return None
    cache = SendCache(components.context)
    peer = cache.peer(born_host, address)
    return None if peer is None else LocalSends(components.context, cache, peer)


def _unless(refusal: Callable[[], str], path: FastPath) -> FastPath:
    """Return a fast path that leaves all frames to the general path while `refusal` has a text."""

    def serve(connection: Connection, buffer: bytearray, start: int, end: int) -> int:
        return start if refusal() else path(connection, buffer, start, end)

    return serve


def _replica_state(components: Components) -> ReplicaState:
    master, replica = components.master, components.replica
    state = ReplicaState(
        is_slave=components.slave is not None,
        ha_port=lambda: None if master is None else master.port,
    )
    if components.watch is not None:
        state = state._replace(check_members=components.watch.due.set)
    if components.acting is not None:
        acting = components.acting
        state = state._replace(meet_master=acting.meet_master, kept_acks=acting.kept_acks)
    if replica is None:
        return state
    return state._replace(
        epochs=lambda: (replica.epochs.epochs, replica.role.broker_id),
        ask_role=replica.port.ask_role,
        confirm_master=replica.port.confirm_master,
    )


def _check_point(components: Components) -> Callable[[], TimerCheckPoint]:
    acting = components.acting
    if acting is None:
        return components.timers.storage.check_point
    return acting.timer_check_point


def _build_assignments(components: Components) -> AssignmentHandlers:
    context, config = components.context, components.context.config
    routes = AssignmentRoutes(
        config.namesrv_addr, config.broker_name, context.topics, components.pool, steady_ms
    )
    return AssignmentHandlers(context, components.tables.modes, routes, components.ids_notifier)
