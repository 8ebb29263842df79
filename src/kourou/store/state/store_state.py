"""`config/kourou-store.json`: state of a store for which RocketMQ has no file.

It holds the file sizes of the store, the topics that were deleted while the log still has their
records, and the extent of the queues at the last clean stop. Java neither reads nor changes the
file. If Java runs in between, the extent is outdated but never wrong.
"""

from __future__ import annotations

from typing import Final

import msgspec

from kourou.disk import Disk
from kourou.errors import StoreConfigError
from kourou.store.config import StoreConfig
from kourou.store.paths import STORE_STATE
from kourou.store.state.config_file import ConfigFile

SIZE_FIELDS: Final = (
    "commitlog_segment_bytes",
    "consumequeue_file_bytes",
    "batch_queue_file_bytes",
)
"""Fields of `StoreConfig` that cannot change during the life of a store."""


class ClosedState(msgspec.Struct, frozen=True):
    """Extent of the store at a clean stop, which reveals queues lost since.

    Attributes:
        log_end: end position of the log's records.
        queue_entries: sum of all queues' `max_offset`.
    """

    log_end: int
    queue_entries: int


class QueueBegins(msgspec.Struct, frozen=True):
    """First offsets of the queues, since a corrupt entry may look like one of an expired record.

    Attributes:
        log_first: first position of the log.
        offsets: sum of all queues' `min_offset` for that first position.
    """

    log_first: int
    offsets: int


class StoreState(msgspec.Struct, frozen=True):
    """The file's contents.

    Attributes:
        deleted_topics: for each deleted topic, the log position below which its records must not
            get queue entries again during recovery.
        closed: None while the store is open, and after a crash.
        index_slots, index_entries: numbers in each file of the key index; 0 if unknown.
        index_position: set if the store was closed with an incomplete index: records below this
            log position were in it. A broker (Java) that appends to the index since leaves a hole
            there.
        begins: as of the last start or stop; None after a topic was deleted since.
        deleted_files: total number of queue files removed by deletions of topics.
    """

    commitlog_segment_bytes: int
    consumequeue_file_bytes: int
    deleted_topics: dict[str, int] = {}
    closed: ClosedState | None = None
    index_slots: int = 0
    index_entries: int = 0
    index_position: int | None = None
    batch_queue_file_bytes: int = StoreConfig.batch_queue_file_bytes
    begins: QueueBegins | None = None
    deleted_files: int = 0


class StoreStateFile:
    """Loads and saves the state."""

    def __init__(self, disk: Disk) -> None:
        self._root = disk.root
        self._file = ConfigFile(disk, STORE_STATE, _decode)

    def read(self) -> StoreState | None:
        """Return the saved state without verifying it; None if there is no such file.

        Raises:
            CorruptRecordError: neither the file nor its backup is good.
        """
        data = self._file.load()
        return None if data is None else _decode(data)

    def load(self, config: StoreConfig) -> StoreState | None:
        """Return the saved state; None if there is no such file: the store is new, or Java's.

        Raises:
            StoreConfigError: the store was created with other file sizes than those of `config`.
            CorruptRecordError: neither the file nor its backup is good.
        """
        state = self.read()
        if state is None:
            return None
        for name in SIZE_FIELDS:
            recorded, configured = getattr(state, name), getattr(config, name)
            if recorded != configured:
                raise StoreConfigError(
                    f"{self._root} was created with {name} = {recorded}, which cannot change to "
                    f"{configured}: configure {recorded}"
                )
        return state

    def save(self, state: StoreState) -> None:
        """Replace the file, durably."""
        self._file.save(msgspec.json.format(msgspec.json.encode(state), indent=2))


def _decode(data: bytes) -> StoreState:
    return msgspec.json.decode(data, type=StoreState)
