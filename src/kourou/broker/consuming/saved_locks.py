"""Queue locks that survive a restart of the broker.

A member relies on its lock for half a minute, whatever happens to the broker. A broker without its
old locks would grant them to the first member that asks, while the previous holders still consume.
So the holders are saved with the other tables, with the time of their last request. A lock lasts
for a minute from that time, over any number of restarts; otherwise a broker that is killed
repeatedly would never release a dead member's queues.

The file `config/kourou-locks.json` is Kourou's own, because Java's brokers do not save locks:

    locks    group -> client id -> list of [topic, broker, queue id, time of the holder's last
             request in epoch ms]
    boot     id of the time since the machine started; empty if unknown
    zero_ms  zero of the steady clock in that time, in epoch ms, as those times count from it

If the machine has not started again, the steady clock gives the ages of locks, so that a change of
the wall clock does not release a lock too early. After a start of the machine the wall clock does.
A lock is saved before its request is answered. A kill may shorten a lock's minute by `RENEWALS_MS`;
what is left is still longer than its holder relies on it. An unreadable
file loses all locks; the broker starts nevertheless.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from kourou.broker.config_saver import ConfigSaver, SavedFile, TextParts
from kourou.broker.consuming.queue_locks import QueueLocks
from kourou.clock import Clock
from kourou.errors import CorruptRecordError
from kourou.model.queue import MessageQueue
from kourou.remoting.runtime import Offload

log = logging.getLogger(__name__)

FILE_NAME: Final = "config/kourou-locks.json"


RENEWALS_MS: Final = 15_000
"""Longest time without saving renewals; `persist` is called every 5 s."""

_SavedLock = tuple[str, str, int, int]


class LocksFile(msgspec.Struct, frozen=True):
    """The contents of the file; see the module's description."""

    locks: dict[str, dict[str, list[_SavedLock]]]
    boot: str = ""
    zero_ms: int = 0


def parse_locks(text: bytes) -> LocksFile:
    """Decode the file.

    Raises:
        ValueError, RecursionError: the text is not of this form.
    """
    return msgspec.json.decode(text, type=LocksFile)


class SavedLocks:
    """The locks of a broker, and their file.

    Attributes:
        locks: all locks, including those loaded from the file.
    """

    def __init__(
        self,
        file: SavedFile,
        offload: Offload,
        clock: Clock,
        steady_ms: Callable[[], int],
        boot_id: str | None = None,
    ) -> None:
        """Load the locks of the file that have not expired.

        Args:
            file: read now; written by `persist`.
            offload: runs the writes off the event loop.
            clock: clock of the times in the file.
            steady_ms: clock by which locks expire, in milliseconds; never goes back.
            boot_id: the time since the machine started, in which `steady_ms` runs on from one
                process to the next; None if unknown.
        """
        self.locks = QueueLocks()
        self._clock = clock
        self._steady_ms = steady_ms
        self._boot_id = boot_id or ""
        self._saver = ConfigSaver(file, self._take, offload)
        try:
            text = file.load()
        except CorruptRecordError as error:
            log.warning("queue_locks.forgotten reason=%s", error)
            text = None
        if text is not None:
            self._restore(parse_locks(text))
        self._note_saved()

    async def persist(self) -> None:
        """Write the file if a holder has changed, or if renewals were not saved for `RENEWALS_MS`.

        Raises:
            OSError: the file could not be written; it is as it was.
        """
        locks = self.locks
        is_old = self._steady_ms() - self._saved_at_ms >= RENEWALS_MS
        if locks.holder_changes != self._saved_holder_changes or (
            is_old and locks.grants != self._saved_grants
        ):
            self._note_saved()
            self._saver.changed()
        await self._saver.save()

    def ages(self) -> bytes:
        """Return the locks for a replica: the text of the file, but times count from now."""
        return b"".join(_text_of(self.locks, -self._steady_ms(), ""))

    def follow(self, text: bytes) -> None:
        """Replace the locks by those of the master, which its `ages` has returned.

        Raises:
            ValueError, RecursionError: the text is not of this form.
        """
        saved, steady_ms = parse_locks(text), self._steady_ms()
        if not saved.locks and not len(self.locks):
            return
        self.locks.clear()
        for group, client_id, queue, requested_at_ms in _locks_of(saved):
            self.locks.lock(group, client_id, [queue], steady_ms + min(requested_at_ms, 0))

    def _note_saved(self) -> None:
        self._saved_holder_changes = self.locks.holder_changes
        self._saved_grants = self.locks.grants
        self._saved_at_ms = self._steady_ms()

    def _restore(self, saved: LocksFile) -> None:
        """Restore the locks with their times of request; times in the future become now."""
        now_ms, steady_ms = self._clock.now_ms(), self._steady_ms()
        if self._boot_id and saved.boot == self._boot_id:
            now_ms = saved.zero_ms + steady_ms
        for group, client_id, queue, requested_at_ms in _locks_of(saved):
            age_ms = max(now_ms - requested_at_ms, 0)
            self.locks.lock(group, client_id, [queue], steady_ms - age_ms)
        self.locks.expire(steady_ms)

    def _take(self) -> TextParts:
        return _text_of(self.locks, self._clock.now_ms() - self._steady_ms(), self._boot_id)


def _locks_of(saved: LocksFile) -> Iterator[tuple[str, str, MessageQueue, int]]:
    """Yield the locks: group, holder, queue, time of the last request."""
    for group, holders in saved.locks.items():
        for client_id, queues in holders.items():
            for topic, broker_name, queue_id, requested_at_ms in queues:
                yield group, client_id, MessageQueue(topic, broker_name, queue_id), requested_at_ms


def _text_of(locks: QueueLocks, zero_ms: int, boot: str) -> Iterator[bytes]:
    """Yield the file's text. `zero_ms` is the steady clock's zero in epoch milliseconds."""
    head = b'{"boot":%b,"zero_ms":%d,"locks":{' % (msgspec.json.encode(boot), zero_ms)
    between = head
    for group in locks.groups():
        held: defaultdict[str, list[_SavedLock]] = defaultdict(list)
        for queue, client_id, requested_at_ms in locks.holders(group):
            queue_fields = queue.topic, queue.broker_name, queue.queue_id
            held[client_id].append((*queue_fields, zero_ms + requested_at_ms))
        yield between + msgspec.json.encode(group) + b":" + msgspec.json.encode(held)
        between = b",\n"
    yield head + b"}}" if between is head else b"}}"
