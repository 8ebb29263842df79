"""What a store remembers about itself beside RocketMQ's files: `config/kourou-store.json`.

The file sizes it was made with, the topics deleted from a log that still holds their records, and
what its queues held when it was last closed. Java neither reads nor harms the file; what Java does
to the store meanwhile makes the last part outdated, never wrong.
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
"""Fields of `StoreConfig` that a store keeps."""


class ClosedState(msgspec.Struct, frozen=True):
    """What a clean stop left: it tells whether queues went missing since.

    Attributes:
        log_end: where the log's records ended.
        queue_entries: sum of all queues' `max_offset`.
    """

    log_end: int
    queue_entries: int


class QueueBegins(msgspec.Struct, frozen=True):
    """Where the queues begin: an entry that rotted may look like one whose record expired.

    Attributes:
        log_first: where the log began.
        offsets: sum of all queues' `min_offset`, while it did.
    """

    log_first: int
    offsets: int


class StoreState(msgspec.Struct, frozen=True):
    """The file's contents.

    Attributes:
        deleted_topics: for each topic deleted, the log position below which its records have no
            queue entry any more, whatever recovery reads.
        closed: None while the store is open, and after a crash.
        index_slots, index_entries: of each file of the key index; 0 if it is not known.
        index_position: records below this place of the log were in the index when it was closed,
            where that was not all; whoever appends to the index since leaves a hole there.
        begins: as of the last start or stop; None once a topic was deleted since.
        deleted_files: how many files of queues the deletions of topics took in all.
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
        """Return what was saved, whatever it says; None if there is no such file.

        Raises:
            CorruptRecordError: neither the file nor its backup can be read.
        """
        data = self._file.load()
        return None if data is None else _decode(data)

    def load(self, config: StoreConfig) -> StoreState | None:
        """Return what was saved; None if the store has no such file: it is new, or Java's.

        Raises:
            StoreConfigError: the store was made with other file sizes than `config` says.
            CorruptRecordError: neither the file nor its backup can be read.
        """
        state = self.read()
        if state is None:
            return None
        for name in SIZE_FIELDS:
            made_with, asked = getattr(state, name), getattr(config, name)
            if made_with != asked:
                raise StoreConfigError(
                    f"{self._root} was made with {name} = {made_with}, and is asked to open with "
                    f"{asked}: a store keeps the sizes it was made with"
                )
        return state

    def save(self, state: StoreState) -> None:
        """Replace the file, durably."""
        self._file.save(msgspec.json.format(msgspec.json.encode(state), indent=2))


def _decode(data: bytes) -> StoreState:
    return msgspec.json.decode(data, type=StoreState)
