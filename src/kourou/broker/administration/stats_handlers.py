"""Handlers of requests on the broker's statistics.

    28   GET_BROKER_RUNTIME_INFO   a table of texts, see `runtime_info.py`
    315  VIEW_BROKER_STATS_DATA    one key of one set, see `stats.py`; 1 if it was never counted
    907  GET_BROKER_HA_STATUS      positions of slaves, or of the connection to the master

Source: AdminBrokerProcessor.java, DefaultHAService.getRuntimeInfo, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kourou.broker.context import BrokerContext
from kourou.broker.delays.delay import DelayDelivery
from kourou.broker.popping.pop_readings import pop_info
from kourou.broker.popping.popping import Popping
from kourou.broker.statistics.runtime_info import NO_TIME, BrokerFacts, runtime_info
from kourou.broker.statistics.stats_samples import Window
from kourou.broker.timer.timer_readings import timer_info
from kourou.broker.timer.timers import Timers
from kourou.errors import RemoteSystemError
from kourou.model.topic import SCHEDULE_TOPIC
from kourou.protocol.brokers import HARuntimeInfo
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.json_records import encode_record
from kourou.protocol.kv_config import encode_kv_table
from kourou.protocol.record.decode import decode_message
from kourou.protocol.stats import (
    BrokerStatsData,
    ViewBrokerStatsDataRequestHeader,
    encode_broker_stats,
)
from kourou.remoting.connection import Request
from kourou.store.message_store import MessageStore
from kourou.store.paths import COMMITLOG


class StatsHandlers:
    """Serves the requests."""

    def __init__(
        self,
        context: BrokerContext,
        delay: DelayDelivery,
        timers: Timers,
        popping: Popping,
        ha_status: Callable[[], HARuntimeInfo],
    ) -> None:
        """Create the handlers; the time of this call is reported as the broker's start.

        Args:
            context: the broker's state and services.
            delay: source of the progress of delay levels.
            timers: source of the state of scheduled messages.
            popping: source of the state of pops.
            ha_status: returns the state of replication.
        """
        self._stats = context.stats
        self._store = context.store
        self._disk = context.disk
        self._commit = context.commit
        self._delay = delay
        self._timers = timers
        self._popping = popping
        self._ha_status = ha_status
        self._clients = context.clients
        self._later = context.later
        self._offload = context.offload
        self._clock = context.clock
        self._boot_at_ms = context.clock.now_ms()

    def on_view_broker_stats_data(self, request: Request) -> RemotingCommand:
        """Serve 315: return the growth of one key in the last minute, hour and day."""
        header = request.command.header(ViewBrokerStatsDataRequestHeader)
        name, key = header.stats_name, header.stats_key
        minute, hour, day = (self._stats.values(name, key, window) for window in Window)
        if minute is None or hour is None or day is None:
            raise RemoteSystemError(
                ResponseCode.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist"
            )
        return response(
            request.command, body=encode_broker_stats(BrokerStatsData(minute, hour, day))
        )

    def on_get_broker_runtime_info(self, request: Request) -> None:
        """Serve 28: return the runtime information."""
        self._later.answer(request, partial(self._runtime_info, request))

    def on_get_broker_ha_status(self, request: Request) -> RemotingCommand:
        """Serve 907: return the state of replication."""
        return response(request.command, body=encode_record(self._ha_status()))

    async def _runtime_info(self, request: Request) -> RemotingCommand:
        space = await self._offload(self._disk.space)
        earliest_at_ms = await self._offload(_earliest_at_ms, self._store)
        info = runtime_info(self._facts(space, earliest_at_ms), self._stats.store)
        return response(request.command, body=encode_kv_table(info))

    def _facts(self, space: tuple[int, int, int], earliest_at_ms: int) -> BrokerFacts:
        """Return the current state of the broker."""
        store = self._store
        return BrokerFacts(
            boot_at_ms=self._boot_at_ms,
            now_ms=self._clock.now_ms(),
            unwritable_reason=store.writer.unwritable_reason,
            log_path=f"{self._disk.root}/{COMMITLOG}",
            space=space,
            log_begin=store.reader.min_position,
            log_end=store.reader.written_position,
            unsynced_bytes=store.reader.written_position - store.reader.synced_position,
            undispatched_bytes=store.reader.written_position - store.reader.visible_position,
            earliest_at_ms=earliest_at_ms,
            delay_offsets={
                level: (delivered, store.reader.max_offset(SCHEDULE_TOPIC, level - 1))
                for level, delivered in self._delay.offsets.items()
            },
            pending_puts=self._commit.pending_puts,
            timer=timer_info(self._timers),
            pop=pop_info(self._popping, self._differing_groups()),
        )

    def _differing_groups(self) -> list[str]:
        """Return the groups whose members have different subscriptions, sorted."""
        found = {
            live.name
            for live in self._clients.consumer_groups()
            if not live.member_subscriptions.is_consistent
        }
        return sorted(found.union(self._popping.filters.groups(self._clock.now_ms())))


def _earliest_at_ms(store: MessageStore) -> int:
    """Return the store time of the oldest message of the log; `NO_TIME` if there is none."""
    record = store.reader.read_record(store.reader.min_position)
    return NO_TIME if record is None else decode_message(record, decompress=False).store_at_ms
