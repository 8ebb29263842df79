"""What one sync covers; made and taken back on the store's thread, run on any other."""

from __future__ import annotations

from typing import NamedTuple

from kourou.disk import Disk


class SyncPlan(NamedTuple):
    """Files to sync, then directories, and what is durable when that is done.

    One plan is of the log, or of consume queues: nothing orders the two.

    Attributes:
        position: the log's records end here, and all of them will be durable.
        store_at_ms: store time of the last of them.
        files: the log's segments.
        directories: the log's, if a segment is new.
        queue_files: a few consume queue files; one that is gone was deleted with its topic.
        queue_directories: those in which one of them is new.
    """

    position: int
    store_at_ms: int
    files: tuple[str, ...]
    directories: tuple[str, ...]
    queue_files: tuple[str, ...] = ()
    queue_directories: tuple[str, ...] = ()

    def run(self, disk: Disk) -> None:
        """Sync everything; on whatever thread.

        Raises:
            OSError: what the plan covers may never become durable.
        """
        for name in self.files:
            disk.sync(name)
        for name in self.directories:
            disk.sync_directory(name)
        disk.sync_all(self.queue_files, self.queue_directories)
