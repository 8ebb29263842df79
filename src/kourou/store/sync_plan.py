"""The extent of one sync: created and completed on the store's thread, run on any thread."""

from __future__ import annotations

from typing import NamedTuple

from kourou.disk import Disk


class SyncPlan(NamedTuple):
    """Files and directories to sync, and the records that are durable afterwards.

    A plan covers either the log or consume queues; plans of the two kinds may run in any order.

    Attributes:
        position: the byte of the log up to which all records are durable after the sync.
        store_at_ms: the store time of the last of these records.
        files: segments of the log.
        directories: the log's directory, if a segment is new.
        queue_files: a few consume queue files; a missing one was deleted with its topic.
        queue_directories: the directories of new files among these.
    """

    position: int
    store_at_ms: int
    files: tuple[str, ...]
    directories: tuple[str, ...]
    queue_files: tuple[str, ...] = ()
    queue_directories: tuple[str, ...] = ()

    def run(self, disk: Disk) -> None:
        """Sync the files, then the directories; on any thread.

        Raises:
            OSError: the data that the plan covers may never become durable.
        """
        for name in self.files:
            disk.sync(name)
        for name in self.directories:
            disk.sync_directory(name)
        disk.sync_all(self.queue_files, self.queue_directories)
