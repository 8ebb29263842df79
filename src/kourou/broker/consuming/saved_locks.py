"""Locks of queues that outlive the broker's process, as their holders do.

A member believes in its lock for half a minute, whatever becomes of the broker. One that forgot its
locks would give them to whichever member came back first, beside those that still consume under
them. So who holds what is saved with the other tables, and since when: a lock lasts for a minute
after its holder asked, however often the broker starts again meanwhile, or a broker that is killed
again and again would never take a dead member's queues from it.

The file `config/kourou-locks.json` is Kourou's own, as Java's brokers forget: `locks`, group ->
client id -> list of [topic, broker, queue id, when the holder asked, in epoch ms]. A kill may cost
what was granted in the seconds since the last save, and it may cost `RENEWALS_MS` of a lock's
minute: its holder believes in it for less than what is left. Only a clock that was set forward
while the broker was down can free a lock too early. A file that cannot be read costs all: that is
no reason to stay down.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
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
"""How long the file may go without what holders asked for again; a save comes each 5 s."""

_Queue = tuple[str, str, int, int]


class _Text(msgspec.Struct):
    locks: dict[str, dict[str, list[_Queue]]]


def parse_locks(text: bytes) -> Mapping[str, Mapping[str, list[_Queue]]]:
    """Return who holds what: group -> client id -> topic, broker, number, and when it asked.

    Raises:
        ValueError, RecursionError: the text is not of this form.
    """
    return msgspec.json.decode(text, type=_Text).locks


class SavedLocks:
    """The locks of a broker and their file.

    Attributes:
        locks: all of them, those that the file told included.
    """

    def __init__(
        self,
        file: SavedFile,
        offload: Offload,
        clock: Clock,
        steady_ms: Callable[[], int],
    ) -> None:
        """Take over the locks of the file that have not expired.

        Args:
            file: read now; written by `persist`.
            offload: takes the writes off the loop.
            clock: of the times in the file.
            steady_ms: the clock by which locks expire, in milliseconds; never goes back.
        """
        self.locks = QueueLocks()
        self._clock = clock
        self._steady_ms = steady_ms
        self._saver = ConfigSaver(file, self._take, offload)
        try:
            text = file.load()
        except CorruptRecordError as error:
            log.warning("queue_locks.forgotten reason=%s", error)
            text = None
        if text is not None:
            self._take_over(parse_locks(text))
        self._note_saved()

    async def persist(self) -> None:
        """Write the file if a queue got another holder, or none; now and then for renewals.

        Raises:
            OSError: the file could not be written; it is as it was.
        """
        locks = self.locks
        is_old = self._steady_ms() - self._saved_at_ms >= RENEWALS_MS
        if locks.moves != self._saved_moves or (is_old and locks.asks != self._saved_asks):
            self._note_saved()
            self._saver.changed()
        await self._saver.save()

    def _note_saved(self) -> None:
        self._saved_moves = self.locks.moves
        self._saved_asks = self.locks.asks
        self._saved_at_ms = self._steady_ms()

    def _take_over(self, saved: Mapping[str, Mapping[str, list[_Queue]]]) -> None:
        """Give all that is saved to its holders, as of when they asked; times to come are now."""
        now_ms, steady_ms = self._clock.now_ms(), self._steady_ms()
        for group, holders in saved.items():
            for client_id, queues in holders.items():
                for topic, broker_name, queue_id, asked_at_ms in queues:
                    queue = MessageQueue(topic, broker_name, queue_id)
                    age_ms = max(now_ms - asked_at_ms, 0)
                    self.locks.lock(group, client_id, [queue], steady_ms - age_ms)
        self.locks.expire(steady_ms)

    def _take(self) -> TextParts:
        return _text_of(self.locks, self._clock.now_ms() - self._steady_ms())


def _text_of(locks: QueueLocks, epoch_ms: int) -> Iterator[bytes]:
    """Yield the file's text. `epoch_ms`: of the beginning of the steady clock."""
    between = b'{"locks":{'
    for group in locks.groups():
        held: defaultdict[str, list[_Queue]] = defaultdict(list)
        for queue, client_id, asked_at_ms in locks.holders(group):
            place = queue.topic, queue.broker_name, queue.queue_id
            held[client_id].append((*place, epoch_ms + asked_at_ms))
        yield between + msgspec.json.encode(group) + b":" + msgspec.json.encode(held)
        between = b",\n"
    yield b"}}" if between == b",\n" else between + b"}}"
