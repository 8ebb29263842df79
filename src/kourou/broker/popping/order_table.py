"""Order infos of a broker: loaded at the start, durable before an answer leaves, saved for Java.

A handler changes `OrderInfoTable.infos`, and awaits `save` before it answers. All changes of one
turn of the event loop, and all that come while a write is under way, share one write and one sync
of the journal:

    state of                           after a kill -9 or a power cut
    config/kourou-order-infos.log      each change whose `save` returned
    config/consumerOrderInfo.json      the infos some seconds ago; all of them after a clean stop

At a start the journal counts, and contains everything. If the JSON file has no seal, a Java broker
has written it since. Then the journal is out of date: it is removed, and the infos of the file
count. The first write afterwards seals the JSON file before it begins a new journal.

Source: QueueLevelConsumerManager.java, apache/rocketmq 5.5.0, which saves its table every 10 s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from kourou.broker.config_saver import ConfigSaver, TextParts, join_parts
from kourou.broker.popping.order_info import OrderedQueue, OrderInfos
from kourou.broker.popping.order_journal import (
    JournalContents,
    OrderJournal,
    encode_offsets_saved,
    encode_queue,
)
from kourou.clock import Clock
from kourou.protocol.popping.order_file import (
    OrderInfo,
    decode_order_info_table,
    encode_order_info_parts,
)
from kourou.remoting.runtime import Offload

log = logging.getLogger(__name__)

FILE_NAME: Final = "config/consumerOrderInfo.json"

_SEPARATOR: Final = "@"
_JOURNAL_BYTES_MIN: Final = 1024 * 1024
_JOURNAL_GROWTH: Final = 4
"""The journal is replaced when it is this many times as large as all infos."""
_PART_QUEUES: Final = 200


class OrderFile(Protocol):
    """A sealed file that is replaced as a whole, see `kourou.store.state.config_file.ConfigFile`.

    Attributes:
        loaded_sequence: 0 if the contents that `load` returned have no seal.
    """

    loaded_sequence: int

    def load(self) -> bytes | None: ...

    def save(self, data: bytes) -> None: ...


class GroupOffsets(Protocol):
    """The committed offsets, see `kourou.broker.consuming.consumer_offsets.ConsumerOffsets`."""

    def query(self, group: str, topic: str, queue_id: int) -> int | None: ...

    def commit(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None: ...


class OrderInfoTable:
    """The order infos of one broker, and their files.

    Attributes:
        infos: all infos; whoever changes them calls `save`.
    """

    def __init__(
        self, file: OrderFile, journal: OrderJournal, offload: Offload, clock: Clock
    ) -> None:
        """Load the infos.

        Args:
            file: `consumerOrderInfo.json`; it must not rewrite itself when it is loaded.
            journal: removed if the file was written by a Java broker.
            offload: runs the writes off the event loop.
            clock: gives the time at which infos beyond the end of a queue are cleared.

        Raises:
            CorruptRecordError: neither the file nor its backup parses.
        """
        self.infos = OrderInfos()
        self._journal = journal
        self._offload = offload
        self._clock = clock
        self._saver = ConfigSaver(file, self._text, offload)
        self._is_sealed = False
        self._least_offsets: dict[OrderedQueue, int] = {}
        self._unsaved: dict[OrderedQueue, None] = {}  # written since the offsets were saved
        self._has_saved_offsets = False  # to be noted in the journal
        self._has_failed = False  # a write failed: the journal lacks changes
        self._snapshot_bytes = 0
        self._next: asyncio.Future[None] | None = None
        self._running: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._load(file)

    def recover(self, offsets: GroupOffsets, max_offset: Callable[[str, int], int]) -> None:
        """Make the infos, the committed offsets and the log agree. Must be called at each start.

        After a kill, a group's committed offset in the file may be older than the last acks, or
        missing. After a power cut with ASYNC_FLUSH, an info may name messages that are lost.

        Args:
            offsets: the committed offsets; set forward where the journal implies a later one.
            max_offset: returns the end of a queue by topic and queue id; 0 for a missing queue.
        """
        for queue, least in self._least_offsets.items():
            topic, group, queue_id = queue
            end = max_offset(topic, queue_id)
            committed = offsets.query(group, topic, queue_id)
            if end > 0 and (committed is None or committed < min(least, end)):
                offsets.commit(group, topic, queue_id, min(least, end))
        self._least_offsets = {}
        count = self.infos.clamp(max_offset, self._clock.now_ms())
        if count:
            log.warning("order_infos.beyond_end queues=%d", count)

    async def save(self) -> None:
        """Wait until all changes made so far are durable.

        An ack's offset must be committed before the call, in the same turn of the loop as the
        change of the info. Cancelling does not undo a write.

        Raises:
            OSError: they are not. The next call tries again with all infos.
        """
        if self.infos.has_changes or self._has_failed or self._has_saved_offsets:
            if self._next is None:
                self._next = asyncio.get_running_loop().create_future()
            waited = self._next
            if self._task is None:
                self._task = asyncio.create_task(self._write_batches())
        elif self._running is not None:
            waited = self._running
        else:
            return
        await asyncio.shield(waited)

    def expire(
        self, read_queues_of: Callable[[str], int | None], has_group: Callable[[str], bool]
    ) -> None:
        """Remove infos that no consumer uses, see `OrderInfos.expire`."""
        count = self.infos.expire(self._clock.now_ms(), read_queues_of, has_group)
        if count:
            log.info("order_infos.expired queues=%d", count)

    async def persist(self) -> bool:
        """Write `consumerOrderInfo.json` if something changed; see `ConfigSaver.save`.

        Raises:
            OSError: the file could not be written; it is as it was.
        """
        await self.save()
        return await self._saver.save()

    async def note_offsets_saved(self) -> None:
        """Note that the file of committed offsets has all offsets that were committed so far.

        Raises:
            OSError: as `save`.
        """
        if self._unsaved:
            self._unsaved = {}
            self._has_saved_offsets = True
            await self.save()

    def abandon(self) -> None:
        """Write nothing more, like a killed process."""
        for waiting in (self._task, self._running, self._next):
            if waiting is not None:
                waiting.cancel()

    def _load(self, file: OrderFile) -> None:
        text = file.load()
        self._is_sealed = text is not None and bool(file.loaded_sequence)
        contents = self._journal.load() if self._is_sealed else None
        if contents is not None:
            self._restore(contents)
            return
        self._journal.remove()
        if text is None:
            return
        for key, infos in decode_order_info_table(text).table.items():
            topic, _, group = key.partition(_SEPARATOR)
            if not group or _SEPARATOR in group:
                continue
            for queue_id, info in infos.items():
                self.infos.restore(OrderedQueue(topic, group, queue_id), info)

    def _restore(self, contents: JournalContents) -> None:
        for queue, info in contents.infos.items():
            self.infos.restore(queue, info)
        for queue, at_ms in contents.cleared_at_ms.items():
            self.infos.restore_cleared(queue, at_ms)
        self._least_offsets = contents.least_offsets
        self._unsaved = dict.fromkeys(contents.least_offsets)

    async def _write_batches(self) -> None:
        """Write the changes, and those that come meanwhile, until there are none."""
        while self._next is not None:
            batch = self._running = self._next
            self._next = None
            try:
                await self._write()
            except Exception as error:  # noqa: BLE001 - raised by each `save` that awaits the batch
                self._has_failed = True
                batch.set_exception(error)
                batch.exception()  # the callers may have been cancelled
                log.warning("order_infos.not_saved error=%s", error)
            else:
                batch.set_result(None)
        self._running = self._task = None

    async def _write(self) -> None:
        """Append the changes to the journal, or replace it."""
        changed = self.infos.take_changed()
        head = b""
        if self._has_saved_offsets:
            head, self._has_saved_offsets = encode_offsets_saved(), False
        self._unsaved.update(dict.fromkeys(changed))
        size = self._journal.size_bytes
        limit = max(_JOURNAL_BYTES_MIN, _JOURNAL_GROWTH * self._snapshot_bytes)
        if changed:
            self._saver.changed()
        if size is not None and size < limit and not self._has_failed:
            lines = head + b"".join([encode_queue(self.infos, queue) for queue in changed])
            await self._offload(self._journal.append, lines)
            return
        if not self._is_sealed:
            self._saver.changed()
            await self._saver.save()
            self._is_sealed = True
        text = await join_parts(self._lines())
        await self._offload(self._journal.replace, text)
        self._snapshot_bytes = len(text)
        self._has_failed = False

    def _lines(self) -> Iterator[bytes]:
        """Yield all lines of a new journal in parts; those with unsaved offsets are last."""
        saved = [queue for queue in self.infos.queues() if queue not in self._unsaved]
        saved += [queue for queue in self.infos.cleared() if queue not in self._unsaved]
        yield from self._line_parts(saved)
        yield encode_offsets_saved()
        yield from self._line_parts(list(self._unsaved))

    def _line_parts(self, queues: list[OrderedQueue]) -> Iterator[bytes]:
        for start in range(0, len(queues), _PART_QUEUES):
            part = queues[start : start + _PART_QUEUES]
            yield b"".join([encode_queue(self.infos, queue) for queue in part])

    def _text(self) -> TextParts:
        """Yield the text of the file in parts; each has the infos at the time it is built."""
        queue_ids: dict[tuple[str, str], list[int]] = {}
        for topic, group, queue_id in list(self.infos.queues()):
            queue_ids.setdefault((topic, group), []).append(queue_id)
        yield b""
        entries = sorted(
            (f"{topic}{_SEPARATOR}{group}", topic, group) for topic, group in queue_ids
        )

        def read() -> Iterator[tuple[str, dict[int, OrderInfo]]]:
            for key, topic, group in entries:
                found = {
                    queue_id: info
                    for queue_id in queue_ids[topic, group]
                    if (info := self.infos.find(OrderedQueue(topic, group, queue_id))) is not None
                }
                yield key, found

        yield from encode_order_info_parts(len(entries), read())
