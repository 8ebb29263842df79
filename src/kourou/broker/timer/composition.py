"""Composition of a broker's timers."""

from __future__ import annotations

from kourou.broker.live_config import LiveConfig
from kourou.broker.statistics.stats import BrokerStats
from kourou.broker.timer.timer_counts import FILE_NAME, TimerCounts, parse_timer_metrics
from kourou.broker.timer.timer_storage import TimerStorage
from kourou.broker.timer.timers import Timers
from kourou.broker.topics import Topics
from kourou.broker.writing.group_commit import GroupCommit
from kourou.disk import Disk
from kourou.remoting.runtime import Runtime
from kourou.store.message_store import MessageStore
from kourou.store.state.config_file import ConfigFile


def build_timers(
    disk: Disk,
    runtime: Runtime,
    *,
    store: MessageStore,
    topics: Topics,
    commit: GroupCommit,
    config: LiveConfig,
    stats: BrokerStats,
) -> Timers:
    """Return the timers of a store with their parts; no file is opened yet."""
    file = ConfigFile(disk, FILE_NAME, parse_timer_metrics)
    counts = TimerCounts(stats, runtime.clock, file, runtime.offload)
    storage = TimerStorage(
        disk,
        store=store,
        commit=commit,
        config=config,
        counts=counts,
        offload=runtime.offload,
        clock=runtime.clock,
    )
    return Timers(
        store=store,
        topics=topics,
        commit=commit,
        config=config,
        storage=storage,
        counts=counts,
        offload=runtime.offload,
        clock=runtime.clock,
    )
