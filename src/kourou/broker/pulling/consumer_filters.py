"""Property filters of consumer groups, saved in `config/consumerFilter.json`.

A heartbeat whose subscription has an expression other than tags registers the compiled expression
by topic and group. Pulls and bit maps use the registered filter, not the expression of the pull. A
new subscription of the group (`kourou.broker.clients`) replaces the filter. An expression that does
not compile removes it, so that pulls are refused with code 27.

The filters of a group without members are kept for a day as dead. Their bits are still computed, so
that messages stored meanwhile need not be evaluated when the group returns.

A bit map is valid for a filter only if the message was stored after the filter's birth. After a
crash the file may be older than the bit maps; then all filters are given a new birth time.

`FilterBitMaps` computes a bit map when a message gets its queue entry, if `enableCalcFilterBitMap`
and `enableConsumeQueueExt` are on. A message without one is evaluated by each pull instead.

Source: ConsumerFilterManager.java, ConsumerFilterData.java, CommitLogDispatcherCalcBitMap.java,
apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from kourou.broker.config_saver import ConfigSaver, SavedFile, TextParts
from kourou.broker.host_quotas import HostQuota
from kourou.broker.live_config import LiveConfig
from kourou.broker.pulling.message_filters import is_tag_expression
from kourou.clock import Clock
from kourou.errors import FilterSyntaxError, MalformedMessageError, SystemBusyError
from kourou.filter.bloom import BloomFilter
from kourou.filter.parser import LENGTH_MAX
from kourou.filter.sql92 import SqlFilter, compile_sql
from kourou.model.properties import decode_properties
from kourou.model.subscription import SQL92_EXPRESSION, SubscriptionData
from kourou.protocol.codes import ResponseCode
from kourou.protocol.consumer_filter_file import (
    StoredConsumerFilter,
    decode_consumer_filters,
    encode_consumer_filters,
)
from kourou.protocol.record.read import read_record
from kourou.remoting.runtime import Offload
from kourou.store.message_store import MessageStore
from kourou.store.queues.appended import AppendedRecord

log = logging.getLogger(__name__)


class FilterBitMaps:
    """Computes the bit maps for one store."""

    def __init__(self, config: LiveConfig, filters: ConsumerFilters, store: MessageStore) -> None:
        self._config = config
        self._filters = filters
        self._reader = store.reader

    def __call__(self, record: AppendedRecord) -> bytes:
        """Return the message's bit map; empty, which excludes no filter, if it gets none."""
        if not self._config.current.enable_calc_filter_bit_map:
            return b""
        filters = self._filters.of_topic(record.topic)
        if not filters:
            return b""
        try:
            data = self._reader.written_bytes(record.physical_offset, record.size)
            header = read_record(data, check_crc=False)
        except (OSError, MalformedMessageError) as error:
            log.warning(
                "filter_bit_map.skipped physical_offset=%d error=%s", record.physical_offset, error
            )
            return b""
        properties = decode_properties(header.properties(data))
        bits = bytearray(self._filters.bloom.bit_count // 8)
        for one in filters:
            if one.compiled is None or one.compiled.matches(properties):
                for position in one.positions:
                    bits[position // 8] |= 1 << position % 8
        return bytes(bits)


FILE_NAME: Final = "config/consumerFilter.json"
FILTERS_MAX: Final = 100_000
"""Limit on filters of all groups, dead ones included."""
EXPRESSIONS_LENGTH_MAX: Final = 2 * 1024 * 1024
"""Limit on characters of all expressions: compiled, each takes up to 125 bytes per character."""

COMPILED_LENGTH_MAX: Final = LENGTH_MAX
"""Limit on characters of new expressions compiled for one heartbeat. Each takes 4 us, in which no
other client is served. Expressions beyond it are compiled with the next heartbeats."""

_LOADED_DEAD_MS: Final = 30_000
"""A filter that was live when the broker stopped is loaded as if dead since this time; the group's
next heartbeat makes it live again."""


@dataclass(slots=True, eq=False)
class ConsumerFilter:
    """Filter of one group for one topic.

    Attributes:
        born_at_ms: bit maps are valid for messages stored after this time, in epoch milliseconds.
        dead_at_ms: time since which the group has no member with this filter; 0 while it has.
        client_version: version of the subscription.
        positions: its bits in the bit maps.
        compiled: None if the expression, loaded from a file of another broker, does not compile.
    """

    group: str
    topic: str
    expression: str
    expression_type: str
    born_at_ms: int
    client_version: int
    positions: tuple[int, ...]
    compiled: SqlFilter | None
    dead_at_ms: int = 0

    @property
    def is_dead(self) -> bool:
        return self.dead_at_ms >= self.born_at_ms


class ConsumerFilters:
    """Filters of all groups, by topic. In memory; `persist` makes them durable."""

    def __init__(
        self,
        file: SavedFile,
        offload: Offload,
        clock: Clock,
        bloom: BloomFilter,
        *,
        was_clean: bool,
        keep_dead_ms: int = 24 * 3600 * 1000,
        quota: HostQuota | None = None,
    ) -> None:
        """Load the file's filters, all dead until a heartbeat arrives.

        Args:
            file: read now; written by `persist`.
            offload: runs the writes off the event loop.
            clock: gives the times of birth and death.
            bloom: assigns each filter its bits; a file written with another one is ignored.
            was_clean: the last stop was clean; otherwise the file may lack the latest filters.
            keep_dead_ms: time after which a dead filter is removed.
            quota: limit on characters of expressions registered by the clients of one host; by
                default the total limit.

        Raises:
            CorruptRecordError: neither the file nor its backup parses.
        """
        self._clock = clock
        self._quota = HostQuota(EXPRESSIONS_LENGTH_MAX) if quota is None else quota
        self._saver = ConfigSaver(file, self._take, offload)
        self._keep_dead_ms = keep_dead_ms
        self._by_topic: dict[str, dict[str, ConsumerFilter]] = {}
        self._topics_of: dict[str, set[str]] = {}  # by group
        self._count = 0
        self._length = 0
        self._compiled_length = 0  # since `begin_heartbeat`
        self.bloom = bloom
        text = file.load()
        if text is not None:
            self._load(decode_consumer_filters(text), was_clean=was_clean)

    def get(self, topic: str, group: str) -> ConsumerFilter | None:
        """Return the group's filter for the topic; None if there is none."""
        return self._by_topic.get(topic, {}).get(group)

    def of_topic(self, topic: str) -> Collection[ConsumerFilter]:
        """Return the filters of all groups for the topic, dead ones included."""
        return self._by_topic.get(topic, {}).values()

    def begin_heartbeat(self) -> None:
        """Reset the limit on characters that `register` compiles for one heartbeat."""
        self._compiled_length = 0

    def register(
        self, group: str, subscriptions: Iterable[SubscriptionData], host: str | None = None
    ) -> bool:
        """Register the filters of a live group, and mark its other filters as dead.

        Args:
            group: group of the member.
            subscriptions: all subscriptions of the member.
            host: host of the member; new expressions count towards its share.

        Returns:
            Whether all filters are registered; False if some are put off to the next heartbeat.
        """
        topics, are_all_registered = set(), True
        for subscription in subscriptions:
            if not is_tag_expression(subscription.expression_type) and subscription.sub_string:
                topics.add(subscription.topic)
                are_all_registered &= self._register_one(group, subscription, host)
        for topic in self._topics_of.get(group, set()) - topics:
            self._mark_dead(self._by_topic[topic][group])
        return are_all_registered

    def unregister(self, group: str) -> None:
        """Mark the filters of a group without members as dead."""
        for topic in self._topics_of.get(group, ()):
            self._mark_dead(self._by_topic[topic][group])

    def clean(self) -> None:
        """Remove filters that have been dead for too long."""
        before = self._clock.now_ms() - self._keep_dead_ms
        for filters in list(self._by_topic.values()):
            for one in list(filters.values()):
                if one.is_dead and one.dead_at_ms <= before:
                    self._remove(one, "dead for too long")

    async def persist(self) -> bool:
        """Write the file if something changed; see `ConfigSaver.save`.

        Raises:
            OSError: the file could not be written; it is as it was.
        """
        self.clean()
        return await self._saver.save()

    def _register_one(self, group: str, subscription: SubscriptionData, host: str | None) -> bool:
        """Register a filter; False if it is put off to the next heartbeat."""
        registered = self.get(subscription.topic, group)
        if registered is not None and not _differs(registered, subscription):
            if registered.client_version != subscription.sub_version:
                registered.client_version = subscription.sub_version
                self._saver.changed()
            self._mark_live(registered)
            return True
        if registered is not None:
            self._remove(registered, "replaced")
        length = len(subscription.sub_string)
        if self._compiled_length and self._compiled_length + length > COMPILED_LENGTH_MAX:
            log.info("consumer_filter.put_off group=%s topic=%s", group, subscription.topic)
            return False
        self._compiled_length += length
        new_filter = self._compile(group, subscription, host)
        if new_filter is not None:
            self._add(new_filter, host)
            log.info("consumer_filter.registered group=%s topic=%s", group, new_filter.topic)
        return True

    def _compile(
        self, group: str, subscription: SubscriptionData, host: str | None
    ) -> ConsumerFilter | None:
        """Compile a new filter; None, with a log entry, if it exceeds a limit or does not compile.

        The client learns of it by the refusal of its next pull.
        """
        topic, expression = subscription.topic, subscription.sub_string
        try:
            self._free_room(len(expression), host)
            compiled = compile_expression(subscription.expression_type, expression)
        except (FilterSyntaxError, SystemBusyError) as error:
            log.warning("consumer_filter.refused group=%s topic=%s reason=%s", group, topic, error)
            return None
        return ConsumerFilter(
            group,
            topic,
            expression,
            subscription.expression_type,
            self._clock.now_ms(),
            subscription.sub_version,
            self._positions(group, topic),
            compiled,
        )

    def _free_room(self, length: int, host: str | None) -> None:
        """Remove dead filters if there is not enough room otherwise.

        Raises:
            SystemBusyError: there is still not enough room.
        """
        if self._has_room(length, host):
            return
        for filters in list(self._by_topic.values()):
            for one in list(filters.values()):
                if one.is_dead:
                    self._remove(one, "no room")
        if not self._quota.has_room(host, length):
            reason = f"no room for a filter of {length} characters: {self._quota.refusal(host)}"
            raise SystemBusyError(ResponseCode.SYSTEM_BUSY, reason)
        if not self._has_room(length, host):
            raise SystemBusyError(
                ResponseCode.SYSTEM_BUSY,
                f"{self._count} filters of {self._length} characters are registered; the limit is "
                f"{FILTERS_MAX} filters of {EXPRESSIONS_LENGTH_MAX} characters",
            )

    def _has_room(self, length: int, host: str | None) -> bool:
        return (
            self._count < FILTERS_MAX
            and self._length + length <= EXPRESSIONS_LENGTH_MAX
            and self._quota.has_room(host, length)
        )

    def _add(self, new_filter: ConsumerFilter, host: str | None = None) -> None:
        self._quota.add((new_filter.topic, new_filter.group), host, len(new_filter.expression))
        self._by_topic.setdefault(new_filter.topic, {})[new_filter.group] = new_filter
        self._topics_of.setdefault(new_filter.group, set()).add(new_filter.topic)
        self._count += 1
        self._length += len(new_filter.expression)
        self._saver.changed()

    def _remove(self, one: ConsumerFilter, reason: str) -> None:
        log.info(
            "consumer_filter.removed group=%s topic=%s reason=%s", one.group, one.topic, reason
        )
        _discard(self._by_topic, one.topic, one.group)
        topics = self._topics_of[one.group]
        topics.discard(one.topic)
        if not topics:
            del self._topics_of[one.group]
        self._count -= 1
        self._quota.remove((one.topic, one.group))
        self._length -= len(one.expression)
        self._saver.changed()

    def _mark_dead(self, one: ConsumerFilter) -> None:
        if not one.is_dead:
            one.dead_at_ms = max(self._clock.now_ms(), one.born_at_ms)
            self._saver.changed()

    def _mark_live(self, one: ConsumerFilter) -> None:
        if one.is_dead:
            one.dead_at_ms = 0
            self._saver.changed()

    def _load(self, texts: Collection[StoredConsumerFilter], *, was_clean: bool) -> None:
        """Add the filters of a file, unless they were made for another size of bit maps."""
        if not all(map(self._has_same_bits, texts)):
            log.info("consumer_filter.other_bloom bits=%d", self.bloom.bit_count)
            return
        now_ms = self._clock.now_ms()
        for text in texts:
            born_at_ms = text.born_at_ms if was_clean else now_ms
            dead_at_ms = text.dead_at_ms or now_ms - _LOADED_DEAD_MS
            self._add(
                ConsumerFilter(
                    text.group,
                    text.topic,
                    text.expression,
                    text.expression_type,
                    born_at_ms,
                    text.client_version,
                    text.positions,
                    _compiled_or_none(text),
                    max(dead_at_ms, born_at_ms),
                )
            )

    def _has_same_bits(self, text: StoredConsumerFilter) -> bool:
        is_sized = text.bit_count == self.bloom.bit_count
        return is_sized and text.positions == self._positions(text.group, text.topic)

    def _positions(self, group: str, topic: str) -> tuple[int, ...]:
        return self.bloom.positions(f"{group}#{topic}")

    def _take(self) -> TextParts:
        filters = (one for topic in self._by_topic.values() for one in topic.values())
        return [encode_consumer_filters(map(self.text_of, filters))]

    def text_of(self, one: ConsumerFilter) -> StoredConsumerFilter:
        """Return the filter in the form of the file and of admin answers."""
        return StoredConsumerFilter(
            one.group,
            one.topic,
            one.expression,
            one.expression_type,
            one.born_at_ms,
            one.dead_at_ms,
            one.client_version,
            self.bloom.bit_count,
            one.positions,
        )


def compile_expression(kind: str, expression: str) -> SqlFilter:
    """Compile the expression.

    Raises:
        FilterSyntaxError: it is invalid, or of an unknown type.
    """
    if kind != SQL92_EXPRESSION:
        raise FilterSyntaxError(f"unknown expression type {kind}: there are only TAG and SQL92")
    return compile_sql(expression)


def _compiled_or_none(text: StoredConsumerFilter) -> SqlFilter | None:
    try:
        return compile_expression(text.expression_type, text.expression)
    except FilterSyntaxError as error:
        log.warning(
            "consumer_filter.unreadable group=%s topic=%s reason=%s", text.group, text.topic, error
        )
        return None


def _differs(registered: ConsumerFilter, subscription: SubscriptionData) -> bool:
    return (registered.expression, registered.expression_type) != (
        subscription.sub_string,
        subscription.expression_type,
    )


def _discard(table: dict[str, dict[str, ConsumerFilter]], topic: str, group: str) -> None:
    filters = table[topic]
    del filters[group]
    if not filters:
        del table[topic]
