"""Copies topics, consumer groups and committed offsets of the master to a slave, by request.

    topics, groups    when the master's version differs from the last copied one: all are put, and
                      those that the master lacks are deleted, except the broker's own
    offsets           each time; none is removed

So a slave can lag by `INTERVAL_MS` in these, beside its log; by `SHORT_INTERVAL_MS` in controller
mode, where it may become master, or by more if a round takes long. A failure is logged once, and
the next round tries again.

Source: SlaveSynchronize.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from kourou.broker.config import BrokerConfig
from kourou.broker.consuming.consumer_offsets import ConsumerOffsets, key_of
from kourou.broker.groups import Groups
from kourou.broker.topics import Topics, system_topics
from kourou.errors import InvalidGroupError, ProtocolError, RemoteError, TransportError
from kourou.model.group import SubscriptionGroup
from kourou.model.topic import TopicConfig, is_system_group
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand, raise_for_response, request
from kourou.protocol.data_version import DataVersion, encode_data_version
from kourou.protocol.groups import (
    GetAllSubscriptionGroupRequestHeader,
    GetAllSubscriptionGroupResponseHeader,
    decode_subscription_group_table,
)
from kourou.protocol.offset_table import decode_consumer_offset_table
from kourou.protocol.topic_table import (
    GetAllTopicConfigRequestHeader,
    GetAllTopicConfigResponseHeader,
    decode_topic_config_table,
)
from kourou.remoting.pool import ConnectionPool

log = logging.getLogger(__name__)
T = TypeVar("T")

INTERVAL_MS: Final = 10_000
SHORT_INTERVAL_MS: Final = 1_000
_PAUSE_PER_ROUND: Final = 20
"""A round is followed by a pause of so many times its duration, so that it is a small part of the
master's work; of `INTERVAL_MS` at most."""
_PAGE_MAX: Final = 2_000
"""Most entries of one page, as Java's."""
_PAGES_MAX: Final = 1_000
_TIMEOUT_S: Final = 10.0


class MetadataCopy:
    """Copies the tables of one master.

    Attributes:
        interval_ms: how often `copy` is to be called.
    """

    def __init__(
        self,
        config: BrokerConfig,
        topics: Topics,
        groups: Groups,
        offsets: ConsumerOffsets,
        pool: ConnectionPool,
    ) -> None:
        """Copy into these tables by connections of `pool`; nothing before `learn_address`."""
        is_controlled = config.controller.enable_controller_mode
        self.interval_ms: Final = SHORT_INTERVAL_MS if is_controlled else INTERVAL_MS
        self._own_topics = frozenset(topic.name for topic in system_topics(config))
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._pool = pool
        self._address = ""
        self._topics_version: DataVersion | None = None
        self._groups_version: DataVersion | None = None
        self._last_failure = ""
        self._not_before_s = 0.0

    def learn_address(self, address: str) -> None:
        """Note the address of the master's port for requests; empty if it is not known."""
        if address and address != self._address:
            self._address = address
            self._topics_version = self._groups_version = None

    async def copy(self) -> None:
        """Copy all tables once, if the master's address is known; a failure is only logged."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        if not self._address or began_s < self._not_before_s:
            return
        try:
            await self._copy_topics()
            await self._copy_groups()
            await self._copy_offsets()
        except (TransportError, RemoteError, ProtocolError, InvalidGroupError) as error:
            if str(error) != self._last_failure:
                log.warning("metadata.copy_failed master=%s reason=%s", self._address, error)
            self._last_failure = str(error)
        else:
            self._last_failure = ""
        pause_s = _PAUSE_PER_ROUND * (loop.time() - began_s)
        self._not_before_s = began_s + min(pause_s, INTERVAL_MS / 1000 - 1)

    async def _copy_topics(self) -> None:
        async def page(start: int, version: str | None) -> _Page[TopicConfig]:
            header = GetAllTopicConfigRequestHeader(start, version, _PAGE_MAX)
            answer = await self._ask(request(RequestCode.GET_ALL_TOPIC_CONFIG, header))
            table = decode_topic_config_table(answer.body)
            total = answer.header(GetAllTopicConfigResponseHeader).total_topic_num
            return _Page(table.topics, total, table.data_version)

        changed = await _changed_table(page, self._topics_version)
        if changed is None:
            return
        topics, version = changed
        self._topics.put_all(list(topics.values()))
        for topic in self._topics:
            if topic.name not in topics and topic.name not in self._own_topics:
                self._topics.delete(topic.name)
        self._topics_version = version

    async def _copy_groups(self) -> None:
        async def page(start: int, version: str | None) -> _Page[SubscriptionGroup]:
            header = GetAllSubscriptionGroupRequestHeader(start, version, _PAGE_MAX)
            answer = await self._ask(request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, header))
            table = decode_subscription_group_table(answer.body)
            total = answer.header(GetAllSubscriptionGroupResponseHeader).total_group_num
            return _Page(table.groups, total, table.data_version)

        changed = await _changed_table(page, self._groups_version)
        if changed is None:
            return
        groups, version = changed
        for group in groups.values():
            self._groups.put(group)
        for name in self._groups.names():
            if name not in groups and not is_system_group(name):
                self._groups.delete(name)
        self._groups_version = version

    async def _copy_offsets(self) -> None:
        answer = await self._ask(RemotingCommand(RequestCode.GET_ALL_CONSUMER_OFFSET))
        table = decode_consumer_offset_table(answer.body)
        for key, offsets in table.offsets.items():
            for queue_id, queue_offset in offsets.items():
                self._offsets.commit(*key_of(key), queue_id, queue_offset)

    async def _ask(self, command: RemotingCommand) -> RemotingCommand:
        answer = await self._pool.request(self._address, command, _TIMEOUT_S)
        raise_for_response(answer)
        return answer


@dataclass(frozen=True, slots=True)
class _Page(Generic[T]):
    """Entries of a table, their number on all pages if known, and the version of the table."""

    entries: Mapping[str, T]
    total: int | None
    version: DataVersion | None


async def _changed_table(
    page: Callable[[int, str | None], Awaitable[_Page[T]]], copied: DataVersion | None
) -> tuple[dict[str, T], DataVersion | None] | None:
    """Return all entries of a table and its version; None if that is `copied`, after one page.

    The table may change between two pages.
    """
    entries = dict[str, T]()
    version: DataVersion | None = None
    for number in range(_PAGES_MAX):
        text = None if version is None else encode_data_version(version).decode()
        got = await page(len(entries), text)
        if not number and got.version is not None and got.version == copied:
            return None
        if number and got.version != version:
            entries.clear()  # the table has changed: this is its first page
        entries.update(got.entries)
        version = got.version
        if got.total is None or len(entries) >= got.total or not got.entries:
            break
    return entries, version
