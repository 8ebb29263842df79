"""The write operations of a slave's store: its log is appended to by raw bytes of the master's log.

The steps are those of `StoreWriter`, with two differences. Appends take received bytes, which keep
their positions, and are refused for messages. And dispatch reads queue and queue offset out of the
records, as a start does, instead of assigning offsets.

Source: DefaultMessageStore.appendToCommitLog and ReputMessageService, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from kourou.errors import ReplicationRefusedError, StoreReadOnlyError
from kourou.protocol.record.encode import RecordDraft
from kourou.protocol.record.scan import Fields
from kourou.store.config import StoreConfig
from kourou.store.lifecycle import StoreFiles
from kourou.store.log.received_bytes import ReceivedBytes
from kourou.store.queues.appended import AppendedRecord, Arrival
from kourou.store.reader import StoreReader
from kourou.store.recovery.replay import Replay
from kourou.store.sealed_run import SealedRun
from kourou.store.writer import StoreWriter

_SLAVE: Final = "the broker is a slave, whose log only its master appends to: send to the master"


class ReplicaWriter(StoreWriter):
    """The write operations of an open store of a slave; `MessageStore.writer`."""

    def __init__(self, files: StoreFiles, config: StoreConfig, reader: StoreReader) -> None:
        super().__init__(files, config, reader)
        self._segment_bytes = config.commitlog_segment_bytes
        self._received = ReceivedBytes(self._log.appended_position, self._segment_bytes)
        self._undispatched: deque[Fields] = deque()
        self._replay = Replay(files.queues, config, {}, is_full=True)
        self._replay.touched.update(files.queues)  # recovery completed them

    @property
    def received_position(self) -> int:
        """The log position of the next byte to receive."""
        return self._received.end

    @property
    def is_empty(self) -> bool:
        """Whether the log has no record."""
        return self._log.appended_position == self._log.min_position

    def append_received(self, position: int, pieces: Sequence[bytes | memoryview]) -> int:
        """Append pieces of the master's log, as far as they complete records, in memory.

        Returns:
            The size of the records that were appended; 0 if none was completed.

        Raises:
            ReplicationRefusedError: the bytes are no records, or do not follow the received ones.
            StoreFullError: too little free space is left.
            StoreReadOnlyError: an earlier write or sync failed.
            ClosedError: the store is closed.
        """
        self._guard.check()
        if position != self._received.end:
            if not self.is_empty or self._received.end != self._received.position:
                raise ReplicationRefusedError(
                    f"the master sent its log from position {position}; the slave has it up to "
                    f"{self._received.end}"
                )
            self._begin_at(position)
        before = self._log.appended_position
        try:
            runs = self._received.add(pieces)
        except ReplicationRefusedError:
            self.drop_received()
            raise
        for run in runs:
            if run.data:
                self._log.add(run.position, run.data)
                self._undispatched.extend(run.records)
                # The store times of a log do not decrease.
                self._last_store_at_ms = max(self._last_store_at_ms, run.records[-1][5])
            if run.is_filled:
                self._log.add_blank()
        return self._log.appended_position - before

    def _begin_at(self, position: int) -> None:
        """Let the empty log begin where the master's bytes do."""
        if position % self._segment_bytes:
            raise ReplicationRefusedError(
                f"the master sent its log from position {position} to an empty slave, which is "
                f"not the start of a file of {self._segment_bytes} bytes: both need the same "
                "mappedFileSizeCommitLog"
            )
        self._log.begin_at(position)
        self.drop_received()

    def drop_received(self) -> None:
        """Forget the bytes of an incomplete record: the master sends them again."""
        self._received = ReceivedBytes(self._log.appended_position, self._segment_bytes)

    def append(self, draft: RecordDraft, now_ms: int) -> AppendedRecord:  # noqa: ARG002
        """Refuse the message.

        Raises:
            StoreReadOnlyError: always.
        """
        raise StoreReadOnlyError(_SLAVE)

    def append_batch(
        self,
        drafts: Sequence[RecordDraft],  # noqa: ARG002 - of the base class
        now_ms: int,  # noqa: ARG002
    ) -> list[AppendedRecord]:
        """Refuse the batch.

        Raises:
            StoreReadOnlyError: always.
        """
        raise StoreReadOnlyError(_SLAVE)

    def begin_run(self, now_ms: int) -> SealedRun | None:  # noqa: ARG002 - of the base class
        """Return None: all messages are refused."""
        return None

    def _drop_appends(self, position: int) -> None:
        super()._drop_appends(position)
        while self._undispatched and self._undispatched[-1][0] >= position:
            self._undispatched.pop()
        self.drop_received()

    def dispatch(self, until_position: int) -> list[Arrival]:
        """Make the written records that end at or below the position visible to readers.

        Returns:
            The records that got a queue entry, oldest first.
        """
        until_position = min(until_position, self._log.written_position)
        ready = []
        while self._undispatched:
            fields = self._undispatched[0]
            if fields[0] + fields[1] > until_position:
                break
            ready.append(self._undispatched.popleft())
        arrivals = self._replay.follow(ready)
        if arrivals:
            self._last_visible = arrivals[-1]
            self._flush_queues(self._queues.flush_long)
        self._reader.visible_position = max(self._reader.visible_position, until_position)
        return list(arrivals)
