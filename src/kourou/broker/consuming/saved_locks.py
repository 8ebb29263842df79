"""Locks of queues that outlive the broker's process, as their holders do.

A member believes in its lock for half a minute, whatever becomes of the broker. One that forgot its
locks would give them to whichever member came back first, beside those that still consume under
them. So who holds what is saved with the other tables, and a broker that starts takes each lock as
just asked for: its holder asks again, or it expires.

The file `config/kourou-locks.json` is Kourou's own, as Java's brokers forget: `locks`, group ->
client id -> list of [topic, broker, queue id]. A kill may cost what was granted in the seconds
since the last save. One that cannot be read costs all: that is no reason to stay down.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from kourou.broker.config_saver import ConfigSaver, SavedFile, TextParts
from kourou.broker.consuming.queue_locks import QueueLocks
from kourou.errors import CorruptRecordError
from kourou.model.queue import MessageQueue
from kourou.remoting.runtime import Offload

log = logging.getLogger(__name__)

FILE_NAME: Final = "config/kourou-locks.json"


class _Text(msgspec.Struct):
    locks: dict[str, dict[str, list[tuple[str, str, int]]]]


def parse_locks(text: bytes) -> Mapping[str, Mapping[str, list[tuple[str, str, int]]]]:
    """Return who holds what: group -> client id -> topic, broker and number of each queue.

    Raises:
        ValueError, RecursionError: the text is not of this form.
    """
    return msgspec.json.decode(text, type=_Text).locks


class SavedLocks:
    """The locks of a broker and their file.

    Attributes:
        locks: all of them, those that the file told included.
    """

    def __init__(self, file: SavedFile, offload: Offload, now_ms: int) -> None:
        """Take the locks of the file as asked for now.

        Args:
            file: read now; written by `persist`.
            offload: takes the writes off the loop.
            now_ms: of the clock by which locks expire, in milliseconds.
        """
        self.locks = QueueLocks()
        self._saver = ConfigSaver(file, self._take, offload)
        try:
            text = file.load()
        except CorruptRecordError as error:
            log.warning("queue_locks.forgotten reason=%s", error)
            text = None
        for group, holders in parse_locks(text).items() if text is not None else ():
            for client_id, queues in holders.items():
                held = [MessageQueue(*queue) for queue in queues]
                self.locks.lock(group, client_id, held, now_ms)
        self._saved = self.locks.moves

    async def persist(self) -> None:
        """Write the file if a queue got another holder, or none.

        Raises:
            OSError: the file could not be written; it is as it was.
        """
        if self._saved != self.locks.moves:
            self._saved = self.locks.moves
            self._saver.changed()
        await self._saver.save()

    def _take(self) -> TextParts:
        return _text_of(self.locks)


def _text_of(locks: QueueLocks) -> Iterator[bytes]:
    between = b'{"locks":{'
    for group in locks.groups():
        held: defaultdict[str, list[tuple[str, str, int]]] = defaultdict(list)
        for queue, client_id in locks.holders(group):
            held[client_id].append((queue.topic, queue.broker_name, queue.queue_id))
        yield between + msgspec.json.encode(group) + b":" + msgspec.json.encode(held)
        between = b",\n"
    yield b"}}" if between == b",\n" else between + b"}}"
