"""The property filters of consumer groups: `config/consumerFilter.json`.

A heartbeat that subscribes by an expression other than tags registers it, compiled, by topic and
group; pulls and bit maps use what is registered, and not what a pull says. What the group wants
(`kourou.broker.clients`) replaces what it wanted before; an expression that does not compile
removes it, so that pulls are refused with 27.

A group without members keeps its filters for a day, dead: its bit of the bit maps goes on being
made, so that what is stored meanwhile need not be evaluated when it comes back.

A bit map says something about a filter only if the message was stored after the filter was born.
After a crash the file may be older than the bit maps are: then all are born anew.

Source: ConsumerFilterManager.java, ConsumerFilterData.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from kourou.broker.client_shares import Shares
from kourou.broker.config_saver import ConfigSaver, SavedFile, TextParts
from kourou.broker.pulling.expressions import is_tag_expression
from kourou.clock import Clock
from kourou.errors import FilterSyntaxError, SystemBusyError
from kourou.filter.bloom import BloomFilter
from kourou.filter.parser import LENGTH_MAX
from kourou.filter.sql92 import SqlFilter, compile_sql
from kourou.model.subscription import SQL92_EXPRESSION, SubscriptionData
from kourou.protocol.codes import ResponseCode
from kourou.protocol.consumer_filter_text import (
    ConsumerFilterText,
    decode_consumer_filters,
    encode_consumer_filters,
)
from kourou.remoting.runtime import Offload

log = logging.getLogger(__name__)

FILE_NAME: Final = "config/consumerFilter.json"
FILTERS_MAX: Final = 100_000
"""Filters of all groups, dead ones too."""
EXPRESSIONS_LENGTH_MAX: Final = 2 * 1024 * 1024
"""Characters of all expressions: compiled, one takes up to 125 bytes a character."""

COMPILED_LENGTH_MAX: Final = LENGTH_MAX
"""Characters of new expressions that one heartbeat has compiled, 4 us each, in which no other
client is served. What is more is compiled with the next heartbeats."""

_LOADED_DEAD_MS: Final = 30_000
"""Who was alive when the broker stopped is thought dead for so long; the next heartbeat tells."""


@dataclass(slots=True, eq=False)
class ConsumerFilter:
    """What one group wants of one topic.

    Attributes:
        born_at_ms: since when bit maps tell of it, in epoch milliseconds.
        dead_at_ms: since when the group has no member that wants it; 0 while it has.
        client_version: of the subscription.
        positions: its bits in the bit maps.
        compiled: None if a file of another broker holds an expression that is none.
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
    """The filters of all groups, by topic. In memory; `persist` makes them durable."""

    def __init__(
        self,
        file: SavedFile,
        offload: Offload,
        clock: Clock,
        bloom: BloomFilter,
        *,
        was_clean: bool,
        keep_dead_ms: int = 24 * 3600 * 1000,
        shares: Shares | None = None,
    ) -> None:
        """Start with what the file says, all dead until a heartbeat comes.

        Args:
            file: read now; written by `persist`.
            offload: takes the writes off the loop.
            clock: for births and deaths.
            bloom: gives each filter its bits; a file that was written with another is ignored.
            was_clean: the broker stopped in order; else the file may lack the latest filters.
            keep_dead_ms: a filter that is dead for so long is forgotten.
            shares: characters of expressions that clients of one host may register; without, as
                many as there may be.

        Raises:
            CorruptRecordError: neither the file nor its backup parses.
        """
        self._clock = clock
        self._shares = Shares(EXPRESSIONS_LENGTH_MAX) if shares is None else shares
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
        """Return the group's filter of the topic."""
        return self._by_topic.get(topic, {}).get(group)

    def of_topic(self, topic: str) -> Collection[ConsumerFilter]:
        """Return the filters of all groups of the topic, dead ones too."""
        return self._by_topic.get(topic, {}).values()

    def begin_heartbeat(self) -> None:
        """Allow `register` to compile as much as one heartbeat may have compiled."""
        self._compiled_length = 0

    def register(
        self, group: str, subscriptions: Iterable[SubscriptionData], host: str | None = None
    ) -> bool:
        """Take over what the live group wants; what it does not name is dead.

        Args:
            group: of the member.
            subscriptions: all that it subscribes to.
            host: the member's, in whose share new expressions count.

        Returns:
            Whether all is registered; False if some has to wait for the next heartbeat.
        """
        topics, is_all = set(), True
        for subscription in subscriptions:
            if not is_tag_expression(subscription.expression_type) and subscription.sub_string:
                topics.add(subscription.topic)
                is_all &= self._register_one(group, subscription, host)
        for topic in self._topics_of.get(group, set()) - topics:
            self._die(self._by_topic[topic][group])
        return is_all

    def unregister(self, group: str) -> None:
        """Note that the group has no members."""
        for topic in self._topics_of.get(group, ()):
            self._die(self._by_topic[topic][group])

    def clean(self) -> None:
        """Forget what is dead for too long."""
        before = self._clock.now_ms() - self._keep_dead_ms
        for filters in list(self._by_topic.values()):
            for one in list(filters.values()):
                if one.is_dead and one.dead_at_ms <= before:
                    self._forget(one, "dead for too long")

    async def persist(self) -> bool:
        """Write the file if something changed; see `ConfigSaver.save`.

        Raises:
            OSError: the file could not be written; it is as it was.
        """
        self.clean()
        return await self._saver.save()

    def _register_one(self, group: str, subscription: SubscriptionData, host: str | None) -> bool:
        """Register, and return False if that has to wait for the next heartbeat."""
        known = self.get(subscription.topic, group)
        if known is not None and not _is_other(known, subscription):
            if known.client_version != subscription.sub_version:
                known.client_version = subscription.sub_version
                self._saver.changed()
            self._revive(known)
            return True
        if known is not None:
            self._forget(known, "replaced")
        length = len(subscription.sub_string)
        if self._compiled_length and self._compiled_length + length > COMPILED_LENGTH_MAX:
            log.info("consumer_filter.put_off group=%s topic=%s", group, subscription.topic)
            return False
        self._compiled_length += length
        made = self._make(group, subscription, host)
        if made is not None:
            self._add(made, host)
            log.info("consumer_filter.registered group=%s topic=%s", group, made.topic)
        return True

    def _make(
        self, group: str, subscription: SubscriptionData, host: str | None
    ) -> ConsumerFilter | None:
        """Return a new filter; None, and a log entry, if there is no room or it does not compile.

        The client is told by its next pull.
        """
        topic, expression = subscription.topic, subscription.sub_string
        try:
            self._make_room(len(expression), host)
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

    def _make_room(self, length: int, host: str | None) -> None:
        """Forget filters of groups that are gone, if there is no room otherwise.

        Raises:
            SystemBusyError: there is none even then.
        """
        if self._has_room(length, host):
            return
        for filters in list(self._by_topic.values()):
            for one in list(filters.values()):
                if one.is_dead:
                    self._forget(one, "no room")
        if not self._shares.has_room(host, length):
            reason = f"of filters with {length} characters more: {self._shares.refusal(host)}"
            raise SystemBusyError(ResponseCode.SYSTEM_BUSY, reason)
        if not self._has_room(length, host):
            raise SystemBusyError(
                ResponseCode.SYSTEM_BUSY,
                f"{self._count} filters of {self._length} characters are registered; at most "
                f"{FILTERS_MAX} of {EXPRESSIONS_LENGTH_MAX} are",
            )

    def _has_room(self, length: int, host: str | None) -> bool:
        return (
            self._count < FILTERS_MAX
            and self._length + length <= EXPRESSIONS_LENGTH_MAX
            and self._shares.has_room(host, length)
        )

    def _add(self, made: ConsumerFilter, host: str | None = None) -> None:
        self._shares.add((made.topic, made.group), host, len(made.expression))
        self._by_topic.setdefault(made.topic, {})[made.group] = made
        self._topics_of.setdefault(made.group, set()).add(made.topic)
        self._count += 1
        self._length += len(made.expression)
        self._saver.changed()

    def _forget(self, one: ConsumerFilter, reason: str) -> None:
        log.info(
            "consumer_filter.removed group=%s topic=%s reason=%s", one.group, one.topic, reason
        )
        _discard(self._by_topic, one.topic, one.group)
        topics = self._topics_of[one.group]
        topics.discard(one.topic)
        if not topics:
            del self._topics_of[one.group]
        self._count -= 1
        self._shares.remove((one.topic, one.group))
        self._length -= len(one.expression)
        self._saver.changed()

    def _die(self, one: ConsumerFilter) -> None:
        if not one.is_dead:
            one.dead_at_ms = max(self._clock.now_ms(), one.born_at_ms)
            self._saver.changed()

    def _revive(self, one: ConsumerFilter) -> None:
        if one.is_dead:
            one.dead_at_ms = 0
            self._saver.changed()

    def _load(self, texts: Collection[ConsumerFilterText], *, was_clean: bool) -> None:
        """Take over the filters of a file, unless they were made for other bit maps."""
        if not all(map(self._has_its_bits, texts)):
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

    def _has_its_bits(self, text: ConsumerFilterText) -> bool:
        is_sized = text.bit_count == self.bloom.bit_count
        return is_sized and text.positions == self._positions(text.group, text.topic)

    def _positions(self, group: str, topic: str) -> tuple[int, ...]:
        return self.bloom.positions(f"{group}#{topic}")

    def _take(self) -> TextParts:
        filters = (one for topic in self._by_topic.values() for one in topic.values())
        return [encode_consumer_filters(map(self.text_of, filters))]

    def text_of(self, one: ConsumerFilter) -> ConsumerFilterText:
        """Return the filter as files and administrators are told it."""
        return ConsumerFilterText(
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
    """Return the compiled expression.

    Raises:
        FilterSyntaxError: it is none, or of a kind that does not exist.
    """
    if kind != SQL92_EXPRESSION:
        raise FilterSyntaxError(f"there are no {kind} expressions, only TAG and SQL92")
    return compile_sql(expression)


def _compiled_or_none(text: ConsumerFilterText) -> SqlFilter | None:
    try:
        return compile_expression(text.expression_type, text.expression)
    except FilterSyntaxError as error:
        log.warning(
            "consumer_filter.unreadable group=%s topic=%s reason=%s", text.group, text.topic, error
        )
        return None


def _is_other(known: ConsumerFilter, subscription: SubscriptionData) -> bool:
    return (known.expression, known.expression_type) != (
        subscription.sub_string,
        subscription.expression_type,
    )


def _discard(table: dict[str, dict[str, ConsumerFilter]], topic: str, group: str) -> None:
    filters = table[topic]
    del filters[group]
    if not filters:
        del table[topic]
