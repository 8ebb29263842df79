"""Appends the changes of topics, groups and request modes to the log of a master with a controller.

A change is thereby copied, acknowledged, confirmed and truncated as messages are, and each has the
log position from which it holds. A message follows the change that creates its topic. The queues of
a deleted topic are removed when the in-sync set has its deletion, which no failover undoes then.
Replicas apply the records in `table_follower.py`; a Java broker ignores them, and copies the tables
each 10 s.

Changed entries are collected by name, and one put carries the state of all of them. So a change
that was not copied in time is tried again with the next one, or when the tables are saved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from kourou.broker.consuming.assignment_modes import RequestModes
from kourou.broker.consuming.consumer_offsets import ConsumerOffsets
from kourou.broker.context import BrokerContext
from kourou.broker.writing.put import PutResult, PutStatus
from kourou.errors import ChangeNotCopiedError, StoreError
from kourou.model.topic import TABLES_TOPIC
from kourou.protocol.record.encode import RecordDraft
from kourou.protocol.table_changes import (
    GroupChange,
    TopicChange,
    encode_change,
    join_changes,
)

_TOPIC: Final = TABLES_TOPIC.encode()
_LOCAL: Final = "127.0.0.1"
_RECORD_BYTES_MAX: Final = 64 * 1024
"""Size of a record's body above which the changes that follow begin another record."""
_STOPPED: Final = PutResult(PutStatus.SERVICE_NOT_AVAILABLE, reason="the broker is stopping")


class TableLog:
    """The changes of one master; a `ChangeLog`."""

    def __init__(
        self,
        context: BrokerContext,
        modes: RequestModes,
        offsets: ConsumerOffsets,
        lagging: Callable[[int], str],
    ) -> None:
        """Collect nothing yet; the tables call it when their `change_log` is set.

        Args:
            context: topics, groups, and the commit that appends.
            modes: request modes.
            offsets: committed offsets.
            lagging: names the members of the in-sync set that lack a log position.
        """
        self._context = context
        self._topics = context.topics
        self._groups = context.groups
        self._modes = modes
        self._offsets = offsets
        self._lagging = lagging
        self._host = context.store_host or (_LOCAL, context.config.port)
        self._bytes_max = min(_RECORD_BYTES_MAX, context.config.max_message_size_bytes // 2)
        self._changed_topics: dict[str, None] = {}
        self._changed_groups: dict[str, None] = {}
        self._changed_modes: dict[tuple[str, str], None] = {}
        self._lock = asyncio.Lock()
        self._is_stopped = False
        self._deletions: set[asyncio.Future[PutResult]] = set()  # not stored on all members yet

    def note_topic(self, name: str) -> None:
        """Note that a topic was created, changed or deleted."""
        self._changed_topics[name] = None

    def note_group(self, name: str) -> None:
        """Note that a group was created, changed or deleted, or its read bans were."""
        self._changed_groups[name] = None

    def note_mode(self, topic: str, group: str) -> None:
        """Note that the request mode of a group in a topic was set."""
        self._changed_modes[topic, group] = None

    def stop(self) -> None:
        """Copy nothing more: the broker is stopping, and the next start tells its slaves all."""
        self._is_stopped = True
        for stored in self._deletions:
            if not stored.done():
                stored.set_result(_STOPPED)

    async def flush(self) -> None:
        """Return when the in-sync replicas have all changes that were noted.

        Raises:
            ChangeNotCopiedError: they do not have them in time, or the log refuses them; the next
                call tries again.
        """
        async with self._lock:
            if self._is_stopped:
                return
            topics, groups, modes = (
                self._changed_topics,
                self._changed_groups,
                self._changed_modes,
            )
            if not (topics or groups or modes):
                return
            self._changed_topics, self._changed_groups, self._changed_modes = {}, {}, {}
            drafts = [self._draft(body) for body in self._bodies(topics, groups, modes)]
            try:
                await self._put(drafts)
            except BaseException:
                self._changed_topics = topics | self._changed_topics
                self._changed_groups = groups | self._changed_groups
                self._changed_modes = modes | self._changed_modes
                raise

    async def log_deletion(self, topic: str, below: int) -> None:
        """Append the deletion of a topic's records; return when the in-sync set has it.

        However long that takes: once it is in the log, other replicas may have deleted the topic.

        Raises:
            ChangeNotCopiedError: the log has refused it; nothing was appended.
            StoreError: the log has failed since, or the broker is stopping.
        """
        draft = self._draft(join_changes([encode_change(TopicChange(topic, below))]))
        commit, now_ms = self._context.commit, self._context.clock.now_ms()
        stored: asyncio.Future[PutResult] = asyncio.get_running_loop().create_future()

        def done(result: PutResult) -> None:
            if not stored.done():
                stored.set_result(result)

        commit.put([draft], now_ms, done)
        if stored.done():
            reason = stored.result().reason
            raise ChangeNotCopiedError(f"topic {topic} cannot be deleted: {reason}")
        self._deletions.add(stored)
        try:
            result = await stored
        finally:
            self._deletions.discard(stored)
        if not result.appended:
            raise StoreError(result.reason)

    async def _put(self, drafts: list[RecordDraft]) -> None:
        now_ms = self._context.clock.now_ms()
        puts = [
            self._context.commit.put_and_wait([draft], now_ms, wait_for_copies=True)
            for draft in drafts
        ]
        for result in await asyncio.gather(*puts):
            if result.status is PutStatus.OK:
                continue
            slaves = ""
            if result.status is PutStatus.FLUSH_SLAVE_TIMEOUT:
                slaves = self._lagging(result.appended[-1].end)
            raise ChangeNotCopiedError(
                f"the change is in effect here, but a failover may undo it: {result.reason}{slaves}"
            )

    def _bodies(
        self,
        topics: dict[str, None],
        groups: dict[str, None],
        modes: dict[tuple[str, str], None],
    ) -> Iterator[bytes]:
        """Yield bodies of records with the states of the changed entries."""
        part: list[bytes] = []
        size = 0
        for change in self._encoded(topics, groups, modes):
            if part and size + len(change) > self._bytes_max:
                yield join_changes(part)
                part, size = [], 0
            part.append(change)
            size += len(change)
        yield join_changes(part)

    def _encoded(
        self,
        topics: dict[str, None],
        groups: dict[str, None],
        modes: dict[tuple[str, str], None],
    ) -> Iterator[bytes]:
        topic_begin = self._context.store.reader.topic_begin
        for name in topics:
            yield encode_change(TopicChange(name, topic_begin(name), self._topics.get(name)))
        for name in groups:
            group, deleted_at, forbidden = self._groups.state_of(name)
            is_cleaned = not self._offsets.topics_of(name) if deleted_at else False
            yield encode_change(GroupChange(name, deleted_at, is_cleaned, group, forbidden))
        for key in modes:
            mode = self._modes.get(*key)
            if mode is not None:
                yield encode_change(mode)

    def _draft(self, body: bytes) -> RecordDraft:
        return RecordDraft(
            topic=_TOPIC,
            queue_id=0,
            flag=0,
            sys_flag=0,
            born_at_ms=self._context.clock.now_ms(),
            born_host=self._host,
            store_host=self._host,
            reconsume_times=0,
            prepared_transaction_offset=0,
            body=body,
            properties=b"",
        )
