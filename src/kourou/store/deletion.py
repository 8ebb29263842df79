"""Deleting a topic: its queues go, its records stay in the log and are shown to nobody.

Whoever deletes takes the steps in this order, one topic after the other:

    step           where       what it does                     a crash after it leaves
    refuse         the loop    later messages are refused       the topic
    note           any thread  says which records are hidden    nothing: the next start removes all
    forget         the loop    readers find no queue            nothing
    remove_files   any thread  files and directories go         nothing
    allow          the loop    the name may be used again       nothing

Files of a queue are only ever made for a message, so that none comes to be while they are removed.
Where a step fails, the ones after it are not taken: the name stays refused until it is deleted
again, or the store is opened anew. Then recovery finds a topic without a note, which is whole, or
one with a note, of which it removes what is left.

Source: for what remains of a topic DefaultMessageStore.deleteTopics, apache/rocketmq 5.5.0, which
has no note: its next start may make the queues again from the log.
"""

from __future__ import annotations

from collections import deque

import msgspec

from kourou.store.lifecycle import StoreFiles
from kourou.store.queues.consumequeue import ConsumeQueue, count_files
from kourou.store.queues.dispatch import Appended, AppendedRun

Pending = deque[tuple[ConsumeQueue | None, Appended | AppendedRun]]
"""Records that readers do not see yet, in the order of the log; without a queue: never."""


class TopicDeletion:
    """One topic on its way out of an open store. Made once all of its records are written.

    Attributes:
        topic: its name.
        below: the end of the log; the topic's records lie before it.
    """

    def __init__(self, files: StoreFiles, topic: str, pending: Pending) -> None:
        self.topic = topic
        self.below = files.log.written_position
        self._files = files
        self._pending = pending

    def refuse(self) -> None:
        """Let the store refuse messages of the topic; readers still see those it has."""
        self._files.queues.refuse(self.topic)

    def note(self) -> None:
        """Note the deletion, durably: from here on it cannot be taken back.

        Raises:
            OSError: only the next start tells whether the note was made.
        """
        state = self._files.state
        deleted = {**state.deleted_topics, self.topic: self.below}
        gone = state.deleted_files + count_files(self._files.queues.of_topic(self.topic))
        self._files.save_state(
            msgspec.structs.replace(state, deleted_topics=deleted, deleted_files=gone, begins=None)
        )

    def forget(self) -> None:
        """Take the topic's queues from readers, and from those that write to the files."""
        self._files.queues.forget(self.topic)
        self._files.queues.deleted_files = self._files.state.deleted_files
        rest = [
            (None if appended.topic == self.topic else queue, appended)
            for queue, appended in self._pending
        ]
        self._pending.clear()
        self._pending.extend(rest)

    def remove_files(self) -> None:
        """Remove the topic's files and directories, durably.

        Raises:
            OSError: some are still there, or may come back; the next start removes them.
        """
        self._files.queues.remove_files(self.topic)

    def allow(self) -> None:
        """Let the topic begin anew, at offset 0, with the next message of that name."""
        self._files.queues.allow(self.topic)
