"""The broker's tables in `config/*.json`: loaded at start, saved together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kourou.broker.config import BrokerConfig, FlushDiskType
from kourou.broker.consuming.assignment_modes import FILE_NAME as MODES_FILE
from kourou.broker.consuming.assignment_modes import RequestModes
from kourou.broker.consuming.consumer_offsets import FILE_NAME as OFFSETS_FILE
from kourou.broker.consuming.consumer_offsets import (
    PAIRS_MAX,
    ConsumerOffsets,
    parse_consumer_offsets,
)
from kourou.broker.consuming.saved_locks import FILE_NAME as LOCKS_FILE
from kourou.broker.consuming.saved_locks import SavedLocks, parse_locks
from kourou.broker.groups import FILE_NAME as GROUPS_FILE
from kourou.broker.groups import GROUPS_MAX, Groups
from kourou.broker.popping.order_journal import OrderJournal
from kourou.broker.popping.order_table import FILE_NAME as ORDER_FILE
from kourou.broker.popping.order_table import OrderInfoTable
from kourou.broker.pulling.consumer_filters import EXPRESSIONS_LENGTH_MAX, ConsumerFilters
from kourou.broker.pulling.consumer_filters import FILE_NAME as FILTERS_FILE
from kourou.broker.topic_attributes import has_batch_queues
from kourou.broker.topics import FILE_NAME as TOPICS_FILE
from kourou.broker.topics import Topics
from kourou.clock import Clock
from kourou.disk import Disk
from kourou.filter.bloom import BloomFilter
from kourou.protocol.consumer_filter_file import decode_consumer_filters
from kourou.protocol.groups import decode_subscription_group_table
from kourou.protocol.popping.order_file import decode_order_info_table
from kourou.protocol.queue_assignment import decode_message_request_modes
from kourou.protocol.topic_table import decode_topic_config_table
from kourou.remoting.runtime import Runtime
from kourou.remoting.steady_time import steady_ms
from kourou.store.message_store import MessageStore
from kourou.store.state.config_file import ConfigFile


class Tables:
    """The topics, groups, request modes, offsets, order infos, filters and locks of one broker.

    Attributes:
        topics: all topics.
        groups: all consumer groups.
        modes: message request modes of groups in topics, where one was set.
        offsets: committed offsets of groups, clamped to the end of the queues at start.
        order_infos: last ordered pops of groups.
        filters: property filters of groups; not saved by `persist` but separately, each 10 s.
        locks: queue locks of ordered consumers.
        persist_last: saves what tells of the other tables, after these; replaced by its owner.
    """

    def __init__(
        self, config: BrokerConfig, disk: Disk, runtime: Runtime, store: MessageStore
    ) -> None:
        """Load the tables of the broker whose store is open.

        Raises:
            CorruptRecordError: neither a file nor its backup parses.
        """
        self.persist_last: Callable[[], Awaitable[None]] = _save_nothing
        self.topics = Topics(
            ConfigFile(disk, TOPICS_FILE, decode_topic_config_table, restores=True),
            config,
            runtime.offload,
            runtime.clock,
        )
        store.writer.set_kind_lookup(lambda name: has_batch_queues(self.topics.get(name)))
        self.groups = Groups(
            ConfigFile(disk, GROUPS_FILE, decode_subscription_group_table, restores=True),
            runtime.offload,
            runtime.clock,
            auto_create=config.auto_create_subscription_group,
            quota=config.host_quota(GROUPS_MAX),
            log_bounds=lambda: (store.reader.min_position, store.writer.appended_position),
        )
        self.modes = RequestModes(
            ConfigFile(disk, MODES_FILE, decode_message_request_modes, restores=True),
            runtime.offload,
        )
        self.offsets = _load_offsets(config, disk, runtime, store)
        self.offsets.restart_deleted(store.reader.topic_begin)
        self.offsets.clamp(store.reader.max_offset)
        self.order_infos = _load_order_infos(disk, runtime, self.offsets, store)
        self.filters = ConsumerFilters(
            ConfigFile(disk, FILTERS_FILE, decode_consumer_filters, restores=True),
            runtime.offload,
            _StoreClock(runtime.clock, store),
            BloomFilter(
                config.max_error_rate_of_bloom_filter, config.expect_consumer_num_use_filter
            ),
            was_clean=store.recovery.was_clean,
            keep_dead_ms=config.filter_data_clean_time_span_ms,
            quota=config.host_quota(EXPRESSIONS_LENGTH_MAX),
        )
        self.locks = SavedLocks(
            ConfigFile(disk, LOCKS_FILE, parse_locks, restores=True),
            runtime.offload,
            runtime.clock,
            steady_ms,
            runtime.boot_id(),
        )

    async def persist(self) -> None:
        """Write the tables that changed, except `filters`. A failure does not prevent the others.

        Raises:
            OSError: one or several files could not be written and are unchanged; this is the first
                error.
        """
        errors = []
        for persist in (
            self.topics.persist,
            self.groups.persist,
            self.modes.persist,
            self._persist_offsets,
            self.order_infos.persist,
            self.locks.persist,
            self.persist_last,
        ):
            try:
                await persist()
            except OSError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    async def _persist_offsets(self) -> None:
        if await self.offsets.persist():
            await self.order_infos.note_offsets_saved()

    async def expire_order_infos(self) -> None:
        """Remove order infos that no consumer uses.

        Raises:
            OSError: they may be back after a restart.
        """
        self.order_infos.expire(
            self._read_queues_of, lambda name: self.groups.get(name) is not None
        )
        await self.order_infos.save()

    def _read_queues_of(self, name: str) -> int | None:
        topic = self.topics.get(name)
        return None if topic is None else topic.read_queue_nums


async def _save_nothing() -> None:
    """Default of `Tables.persist_last`."""


def _load_order_infos(
    disk: Disk, runtime: Runtime, offsets: ConsumerOffsets, store: MessageStore
) -> OrderInfoTable:
    """Return the order infos; sets offsets forward that a kill left behind them."""
    file = ConfigFile(disk, ORDER_FILE, decode_order_info_table)
    table = OrderInfoTable(file, OrderJournal(disk), runtime.offload, runtime.clock)
    table.recover(offsets, store.reader.max_offset)
    return table


def _load_offsets(
    config: BrokerConfig, disk: Disk, runtime: Runtime, store: MessageStore
) -> ConsumerOffsets:
    is_sync = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
    return ConsumerOffsets(
        ConfigFile(disk, OFFSETS_FILE, parse_consumer_offsets, restores=True),
        runtime.offload,
        runtime.clock,
        # In sync mode no consumer can commit an offset of a record that is not synced.
        None if is_sync else store.reader,
        config.host_quota(PAIRS_MAX),
        lambda: store.reader.visible_position,
    )


class _StoreClock:
    """The store time of the next message, which does not go back with the wall clock.

    A filter gets its creation time from this clock. The bit map of a message says nothing about a
    filter that was created after the message was stored.
    """

    def __init__(self, clock: Clock, store: MessageStore) -> None:
        self._clock = clock
        self._writer = store.writer

    def now_ms(self) -> int:
        return max(self._clock.now_ms(), self._writer.last_store_at_ms)
