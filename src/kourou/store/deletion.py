"""Deletion of a topic: removes its queues; its records stay in the log but are hidden from readers.

The caller runs the steps in this order, one topic at a time:

    step           thread      effect                           a crash after it leaves
    refuse         the loop    the store refuses new messages   the topic
    note           any thread  records the deletion durably     nothing: the next start removes all
    forget         the loop    readers find no queue            nothing
    remove_files   any thread  removes files and directories    nothing
    allow          the loop    the name may be used again       nothing

Queue files are created only when a message is stored, so no file appears during the removal. If a
step fails, the caller must not run the later ones: the topic stays refused until it is deleted
again or the store is reopened. Recovery then finds the topic either without a note, and complete,
or with a note, and removes its remaining files.

A replica follows a deletion of its master's (`FollowedDeletion`) when its log has the change: note
and removal are the same, but no message is refused, since the queues may have records of a newer
topic of the same name already. These stay.

Source: DefaultMessageStore.deleteTopics, apache/rocketmq 5.5.0, for what remains of a topic. Java
has no note: its next start may rebuild the queues from the log.
"""

from __future__ import annotations

from collections import deque

import msgspec

from kourou.store.lifecycle import StoreFiles
from kourou.store.queues.appended import AppendedBatch, AppendedRecord
from kourou.store.queues.consumequeue import ConsumeQueue, count_files

Pending = deque[tuple[ConsumeQueue | None, AppendedRecord | AppendedBatch]]
"""Records that readers do not see yet, in log order. The queue is None for records that are never
shown."""


class TopicDeletion:
    """Deletion of one topic of an open store; created when all of its records are written.

    Attributes:
        topic: the topic's name.
        log_end: the end of the log; the topic's records lie before it.
    """

    def __init__(self, files: StoreFiles, topic: str, pending: Pending) -> None:
        self.topic = topic
        self.log_end = files.log.written_position
        self._files = files
        self._pending = pending

    def refuse(self) -> None:
        """Refuse new messages of the topic; readers still see the existing ones."""
        self._files.queues.refuse(self.topic)

    def note(self) -> None:
        """Record the deletion durably in the store's state; it cannot be undone afterwards.

        Raises:
            OSError: the note may or may not be durable; the next start acts on what it finds.
        """
        state = self._files.state
        deleted = {**state.deleted_topics, self.topic: self.log_end}
        removed_files = state.deleted_files + count_files(self._files.queues.of_topic(self.topic))
        self._files.save_state(
            msgspec.structs.replace(
                state, deleted_topics=deleted, deleted_files=removed_files, begins=None
            )
        )

    def forget(self) -> None:
        """Remove the topic's queues from the table, so that nothing reads or writes their files."""
        self._files.queues.forget(self.topic)
        self._files.queues.deleted_files = self._files.state.deleted_files
        pending = [
            (None if appended.topic == self.topic else queue, appended)
            for queue, appended in self._pending
        ]
        self._pending.clear()
        self._pending.extend(pending)

    def remove_files(self) -> None:
        """Remove the topic's files and directories, durably.

        Raises:
            OSError: some files remain, or may reappear after a crash; the next start removes them.
        """
        self._files.queues.remove_files(self.topic)

    def allow(self) -> None:
        """Accept messages of the topic again; its queues then start at offset 0."""
        self._files.queues.allow(self.topic)


class FollowedDeletion:
    """Deletion of a topic's records below a log position, as the log of a replica orders it.

    The caller runs `note`, then `remove_one` until it returns False. The replica has no records of
    the topic below the position that are not in its queues yet.
    """

    def __init__(self, files: StoreFiles, topic: str, below: int) -> None:
        self._files = files
        self._topic = topic
        self._below = below

    def note(self) -> None:
        """Record the deletion durably, as `TopicDeletion.note`; on any thread.

        Raises:
            OSError: the note may or may not be durable.
        """
        state = self._files.state
        deleted = {**state.deleted_topics, self._topic: self._below}
        removed_files = state.deleted_files + count_files(self._old_queues())
        self._files.save_state(
            msgspec.structs.replace(
                state, deleted_topics=deleted, deleted_files=removed_files, begins=None
            )
        )

    def remove_one(self) -> bool:
        """Remove one old queue with its files, durably; return whether there was one. On the loop.

        Raises:
            OSError: some of its files remain; the next start removes them.
        """
        queues = self._files.queues
        queues.deleted_files = self._files.state.deleted_files
        queue = next(iter(self._old_queues()), None)
        if queue is not None:
            queues.remove(queue)
        return queue is not None

    def _old_queues(self) -> list[ConsumeQueue]:
        """Return the queues that begin with a record of the deleted topic.

        A queue that a newer topic has continued was restarted by its first record.
        """
        return [
            queue
            for queue in self._files.queues.of_topic(self._topic)
            if _begins_below(queue, self._below)
        ]


def _begins_below(queue: ConsumeQueue, position: int) -> bool:
    entry = queue.entry(queue.min_offset)
    return entry is None or entry.physical_offset < position
