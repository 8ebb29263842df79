"""Builds the service that sends the log to slaves, with the rule of what sends wait for.

With a controller, sends wait for the in-sync set, whose keeper also decides what consumers see;
otherwise for a number of slaves.
"""

from __future__ import annotations

from kourou.broker.context import BrokerContext
from kourou.broker.replication.classic_copies import ClassicCopies
from kourou.broker.replication.controlled_replica import ControlledReplica
from kourou.broker.replication.in_sync_keeper import InSyncKeeper
from kourou.broker.replication.master import ReplicationMaster
from kourou.broker.writing.copy_waits import CopyRule
from kourou.remoting.runtime import Runtime


def build_master(
    context: BrokerContext, runtime: Runtime, replica: ControlledReplica | None
) -> ReplicationMaster | None:
    """Return the service of a master; None if the broker accepts no slaves.

    Args:
        context: the broker's state and services, whose commit then waits for copies.
        runtime: provides the network and the clock.
        replica: role and epochs in controller mode; None without a controller.
    """
    config = context.config
    if not config.replication.accepts_slaves:
        return None
    commit, keeper = context.commit, _build_keeper(context, replica)
    master = ReplicationMaster(
        config.replication,
        context.store.reader,
        runtime,
        config.store.commitlog_segment_bytes,
        keeper,
    )
    rules = config.replication
    if keeper is not None:
        commit.on_written = master.send
        commit.on_dispatched = master.tell_confirmed
        reason = (
            "not all members of the in-sync set reported the message within "
            f"{rules.slave_timeout_ms} ms (slaveTimeout)"
        )
        commit.confirmed_position = keeper.confirmed_position
        timeout_ms = rules.slave_timeout_ms
        commit.wait_for_copies(
            CopyRule(keeper.copied_position, timeout_ms, reason, may_be_undone=True)
        )
        master.on_slaves_changed = commit.on_copied
        return master
    commit.on_synced = master.send
    commit.has_slaves = lambda: rules.waits_for_copies or master.has_slave_at_end
    if rules.waits_for_copies:
        ClassicCopies(rules, master, commit)
    return master


def _build_keeper(context: BrokerContext, replica: ControlledReplica | None) -> InSyncKeeper | None:
    if replica is None or not replica.role.is_master:
        return None
    return InSyncKeeper(
        replica.role,
        replica.port,
        replica.epochs.epochs,
        context.config.replication,
        context.commit,
    )
