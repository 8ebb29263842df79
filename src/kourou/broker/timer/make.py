"""What the timers of a broker are made of."""

from __future__ import annotations

from kourou.broker.group_commit import GroupCommit
from kourou.broker.live_config import LiveConfig
from kourou.broker.statistics.stats import BrokerStats
from kourou.broker.timer.timer_counts import TimerCounts
from kourou.broker.timer.timer_storage import TimerStorage
from kourou.broker.timer.timers import Timers
from kourou.disk import Disk
from kourou.remoting.runtime import Runtime
from kourou.store.message_store import MessageStore


def make_timers(
    disk: Disk,
    runtime: Runtime,
    *,
    store: MessageStore,
    commit: GroupCommit,
    config: LiveConfig,
    stats: BrokerStats,
) -> Timers:
    """Return the timers of a store, and what they are made of; nothing is opened yet."""
    storage = TimerStorage(
        disk,
        store=store,
        commit=commit,
        config=config,
        offload=runtime.offload,
        clock=runtime.clock,
    )
    return Timers(
        store=store,
        commit=commit,
        config=config,
        storage=storage,
        counts=TimerCounts(stats, runtime.clock),
        offload=runtime.offload,
        clock=runtime.clock,
    )
