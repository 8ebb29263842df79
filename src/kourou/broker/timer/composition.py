"""Composition of a broker's timers."""

from __future__ import annotations

from kourou.broker.context import BrokerContext
from kourou.broker.timer.timer_counts import FILE_NAME, TimerCounts, parse_timer_metrics
from kourou.broker.timer.timer_storage import TimerStorage
from kourou.broker.timer.timers import Timers
from kourou.store.state.config_file import ConfigFile


def build_timers(context: BrokerContext) -> Timers:
    """Return the timers of a store with their parts; no file is opened yet."""
    file = ConfigFile(context.disk, FILE_NAME, parse_timer_metrics)
    counts = TimerCounts(context.stats, context.clock, file, context.offload)
    storage = TimerStorage(
        context.disk,
        store=context.store,
        commit=context.commit,
        config=context.live_config,
        counts=counts,
        offload=context.offload,
        clock=context.clock,
    )
    return Timers(
        store=context.store,
        topics=context.topics,
        commit=context.commit,
        config=context.live_config,
        storage=storage,
        counts=counts,
        offload=context.offload,
        clock=context.clock,
    )
