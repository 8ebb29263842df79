"""Copies tables of the master to a slave, by request.

    topics, groups    when the master's version differs from the last copied one: all are put, and
                      those that the master lacks are deleted, except the broker's own
    request modes     each time; none is removed
    offsets           each time; with a controller, those that the master lacks are removed
    delay offsets     each time, to their file, which the next master reads
    queue locks       each time, from a master with a controller

A slave can lag by `INTERVAL_MS` in these, beside its log; by `SHORT_INTERVAL_MS` in controller
mode, where it may become master, or by more if a round takes long. A failure is logged once, and
the next round tries again.

With a controller, the log of a Kourou master has all changes of topics, groups and modes
(`table_log.py`). So a slave copies them once, before it copies the log: what is in the log is
newer. A later copy could be older than a change that was applied.

In controller mode, the progress of the timer and the counts of its messages are copied as well, for
`timer_follower.py`.

Source: SlaveSynchronize.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from kourou.broker.config import BrokerConfig
from kourou.broker.consuming.assignment_modes import RequestModes
from kourou.broker.consuming.consumer_offsets import ConsumerOffsets, parse_log_positions
from kourou.broker.consuming.saved_locks import SavedLocks
from kourou.broker.groups import Groups
from kourou.broker.topics import Topics, system_topics
from kourou.errors import (
    InvalidGroupError,
    MalformedBodyError,
    ProtocolError,
    RemoteError,
    TransportError,
)
from kourou.model.group import SubscriptionGroup
from kourou.model.topic import TopicConfig, is_system_group
from kourou.protocol.brokers import TimerMetrics, decode_timer_check_point
from kourou.protocol.codes import RequestCode
from kourou.protocol.command import RemotingCommand, raise_for_response, request
from kourou.protocol.data_version import DataVersion, encode_data_version
from kourou.protocol.groups import (
    GetAllSubscriptionGroupRequestHeader,
    GetAllSubscriptionGroupResponseHeader,
    decode_subscription_group_table,
)
from kourou.protocol.json_records import decode_record
from kourou.protocol.offset_table import decode_consumer_offset_table
from kourou.protocol.queue_assignment import decode_message_request_modes
from kourou.protocol.table_changes import (
    LOCKS_MEMBER,
    REPLICA_FIELD,
    TABLE_LOG_FIELD,
    member_of,
)
from kourou.protocol.timer_progress import PROGRESS_FIELD, ReplicaProgress, decode_progress
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
_CHECK_INTERVAL_MS: Final = 100
"""How soon a slave begins to copy in controller mode, when it has learned of a master."""
_PAUSE_PER_ROUND: Final = 20
"""A round is followed by a pause of so many times its duration, so that it is a small part of the
master's work; of `INTERVAL_MS` at most."""
_PAGE_MAX: Final = 2_000
"""Most entries of one page, as Java's."""
_PAGES_MAX: Final = 1_000
_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class FollowedTables:
    """The tables of a slave besides topics and groups.

    Attributes:
        offsets, modes, locks: see `kourou.broker.tables`.
        topic_begin: position of the log below which records belong to a deleted topic of this name.
        save_delay_offsets: writes the file of the delay levels; raises OSError.
    """

    offsets: ConsumerOffsets
    modes: RequestModes
    locks: SavedLocks
    topic_begin: Callable[[str], int]
    save_delay_offsets: Callable[[bytes], Awaitable[object]]


class MetadataCopy:
    """Copies the tables of one master.

    Attributes:
        interval_ms: how often `copy` is to be called.
        on_copied: called after each complete round.
        on_topic_deleted: called with each topic that the master lacks, if its log does not tell.
        on_timer_progress: called with the progress of the master's timer, if it tells that.
        on_timer_metrics: called with the counts of its waiting messages.
    """

    def __init__(
        self,
        config: BrokerConfig,
        topics: Topics,
        groups: Groups,
        followed: FollowedTables,
        pool: ConnectionPool,
    ) -> None:
        """Copy into these tables by connections of `pool`; nothing before `learn_address`."""
        is_controlled = config.controller.enable_controller_mode
        self._is_controlled = is_controlled
        self.on_copied: Callable[[], None] = lambda: None
        self.on_topic_deleted: Callable[[str], None] = lambda _name: None
        self.on_timer_progress: Callable[[ReplicaProgress], None] = lambda _: None
        self.on_timer_metrics: Callable[[TimerMetrics], None] = lambda _: None
        self.interval_ms: Final = _CHECK_INTERVAL_MS if is_controlled else INTERVAL_MS
        self._own_topics = frozenset(topic.name for topic in system_topics(config))
        self._topics = topics
        self._groups = groups
        self._followed = followed
        self._pool = pool
        self._address = ""
        self._topics_version: DataVersion | None = None
        self._groups_version: DataVersion | None = None
        self._delay_text = b""  # as copied last
        self._has_changes_in_log = False  # the log has what follows the last copy of the tables
        self._last_failure = ""
        self._not_before_s = 0.0

    def learn_address(self, address: str) -> None:
        """Note the address of the master's port for requests; empty if it is not known."""
        if address and address != self._address:
            self._address = address
            self._topics_version = self._groups_version = None
            self._has_changes_in_log = False
            self._not_before_s = 0.0

    def forget_address(self) -> None:
        """Copy nothing until the next `learn_address`."""
        self._address = ""

    async def copy(self) -> None:
        """Copy all tables once, if the master's address is known; a failure is only logged."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        if not self._address or began_s < self._not_before_s:
            return
        try:
            await self._copy_all()
        except (TransportError, RemoteError, ProtocolError, InvalidGroupError, OSError) as error:
            if str(error) != self._last_failure:
                log.warning("metadata.copy_failed master=%s reason=%s", self._address, error)
            self._last_failure = str(error)
        else:
            self._last_failure = ""
            self.on_copied()
        least_s = SHORT_INTERVAL_MS / 1000 if self._is_controlled else 0.0
        pause_s = max(least_s, _PAUSE_PER_ROUND * (loop.time() - began_s))
        self._not_before_s = began_s + min(pause_s, INTERVAL_MS / 1000 - 1)

    async def _copy_all(self) -> None:
        if not self._has_changes_in_log:
            has_changes_in_log = await self._copy_topics()
            await self._copy_groups(has_changes_in_log=has_changes_in_log)
            await self._copy_modes()
            self._has_changes_in_log = has_changes_in_log
        await self._copy_offsets()
        await self._copy_delay_offsets()
        if self._has_changes_in_log:  # of a Kourou master
            await self._copy_timers()

    async def _copy_topics(self) -> bool:
        """Copy the topics; return whether the master's log has what changes from then on."""
        has_log = False

        async def page(start: int, version: str | None) -> _Page[TopicConfig]:
            nonlocal has_log
            header = GetAllTopicConfigRequestHeader(start, version, _PAGE_MAX)
            answer = await self._ask(request(RequestCode.GET_ALL_TOPIC_CONFIG, header))
            has_log = self._is_controlled and TABLE_LOG_FIELD in answer.ext_fields
            table = decode_topic_config_table(answer.body)
            total = answer.header(GetAllTopicConfigResponseHeader).total_topic_num
            return _Page(table.topics, total, table.data_version)

        changed = await _changed_table(page, self._topics_version)
        if changed is None:
            return has_log
        topics, version = changed
        self._topics.put_all(list(topics.values()))
        for topic in self._topics:
            if topic.name not in topics and topic.name not in self._own_topics:
                self._topics.delete(topic.name)
                if not has_log:
                    self.on_topic_deleted(topic.name)
        self._topics_version = version
        return has_log

    async def _copy_groups(self, *, has_changes_in_log: bool) -> None:
        deleted: Mapping[str, int] = {}

        async def page(start: int, version: str | None) -> _Page[_GroupState]:
            nonlocal deleted
            header = GetAllSubscriptionGroupRequestHeader(start, version, _PAGE_MAX)
            command = request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, header)
            if has_changes_in_log:
                command.ext_fields[REPLICA_FIELD] = "true"
            answer = await self._ask(command)
            table = decode_subscription_group_table(answer.body)
            deleted = table.deleted
            total = answer.header(GetAllSubscriptionGroupResponseHeader).total_group_num
            states = {
                name: (group, table.forbidden.get(name, {})) for name, group in table.groups.items()
            }
            return _Page(states, total, table.data_version)

        changed = await _changed_table(page, self._groups_version)
        if changed is None:
            return
        groups, version = changed
        for name, (group, forbidden) in groups.items():
            _, deleted_at, _ = self._groups.state_of(name)
            self._groups.follow(name, group, deleted_at, forbidden)
        for name in self._groups.names():
            if name not in groups and not is_system_group(name):
                self._groups.delete(name)
        if has_changes_in_log:
            self._groups.follow_deletions(deleted)
        self._groups_version = version

    async def _copy_modes(self) -> None:
        answer = await self._ask(RemotingCommand(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE))
        modes = decode_message_request_modes(answer.body).message_request_mode_map
        for of_groups in modes.values():
            for mode in of_groups.values():
                self._followed.modes.put(mode)

    async def _copy_offsets(self) -> None:
        command = RemotingCommand(RequestCode.GET_ALL_CONSUMER_OFFSET)
        if self._is_controlled:
            command.ext_fields[REPLICA_FIELD] = "true"
        answer = await self._ask(command)
        table = decode_consumer_offset_table(answer.body)
        positions = parse_log_positions(answer.body)
        begin = self._followed.topic_begin
        self._followed.offsets.follow(table.offsets, positions, begin, table.data_version)
        locks = member_of(answer.body, LOCKS_MEMBER)
        if locks is not None:
            try:
                self._followed.locks.follow(locks)
            except (ValueError, RecursionError) as error:
                raise MalformedBodyError(f"queue locks: {error}") from None

    async def _copy_delay_offsets(self) -> None:
        answer = await self._ask(RemotingCommand(RequestCode.GET_ALL_DELAY_OFFSET))
        if answer.body and answer.body != self._delay_text:
            await self._followed.save_delay_offsets(answer.body)
            self._delay_text = answer.body

    async def _copy_timers(self) -> None:
        answer = await self._ask(RemotingCommand(RequestCode.GET_TIMER_CHECK_POINT))
        text = answer.ext_fields.get(PROGRESS_FIELD)
        if text is not None:
            check_point = decode_timer_check_point(answer.body)
            self.on_timer_progress(decode_progress(check_point, text))
        answer = await self._ask(RemotingCommand(RequestCode.GET_TIMER_METRICS))
        self.on_timer_metrics(decode_record(TimerMetrics, answer.body))

    async def _ask(self, command: RemotingCommand) -> RemotingCommand:
        answer = await self._pool.request(self._address, command, _TIMEOUT_S)
        raise_for_response(answer)
        return answer


_GroupState = tuple[SubscriptionGroup, Mapping[str, int]]
"""A group and its read bans."""


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
