"""Saves a table to its config file: off the loop, one write at a time, never ahead of the log.

The text is encoded on the event loop, in parts, and other tasks run between the parts. Encoding it
in one go on another thread would still delay the loop, which waits for the interpreter lock after
each system call.

A file of offsets may say "all before 42 is done" only if a crash cannot remove message 42. In sync
mode consumers see no message that is not synced, so that committed offsets can be written at once.
With ASYNC_FLUSH, a snapshot of the table is written only when the log is synced up to its written
position at the time of the snapshot.

Source: ConfigManager.persist, apache/rocketmq 5.5.0, which writes at once.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from kourou.remoting.runtime import Offload

log = logging.getLogger(__name__)

_SOON_TRIES: Final = 10
_SOON_S: Final = 0.2
"""Pause between two tries. With ASYNC_FLUSH the log is synced twice a second by default."""


class SavedFile(Protocol):
    """A file that is replaced as a whole, see `kourou.store.state.config_file.ConfigFile`."""

    def load(self) -> bytes | None: ...

    def save(self, data: bytes) -> None: ...


class LogPositions(Protocol):
    """Written and synced positions of the commit log, in bytes."""

    @property
    def written_position(self) -> int: ...

    @property
    def synced_position(self) -> int: ...


TextParts = Iterable[bytes]
"""The text of a table in parts. Each is encoded when the iterator reaches it, in about 1 ms."""


@dataclass(slots=True)
class _Snapshot:
    """A snapshot of the table, to be written once the log is synced up to `position`."""

    text: bytes
    position: int


class ConfigSaver:
    """Saves one table when it has changed.

    The table calls `changed`; its owner calls `save` periodically and before it closes.
    """

    def __init__(
        self,
        file: SavedFile,
        encode: Callable[[], TextParts],
        offload: Offload,
        log_positions: LogPositions | None = None,
    ) -> None:
        """Save snapshots from `encode` to `file`.

        Args:
            file: written off the event loop.
            encode: encodes the table; called on the event loop, which runs other tasks between the
                parts. A change in the meantime may or may not be in the text; the table calls
                `changed` for it, so that a later save writes it.
            offload: runs blocking calls off the event loop.
            log_positions: the log that the file must not run ahead of; None if the table does not
                refer to the log, or only to synced records.
        """
        self._file = file
        self._encode = encode
        self._offload = offload
        self._log_positions = log_positions
        self._is_changed = False
        self._snapshot: _Snapshot | None = None
        self._lock = asyncio.Lock()
        self._write_lock = threading.Lock()

    def changed(self) -> None:
        """Mark the table as changed since the file was written."""
        self._is_changed = True

    async def save(self) -> bool:
        """Write the table if it has changed, and return whether the file now holds all changes.

        False means that changes remain for a later call: the log is not yet synced up to the
        position of the snapshot, or the table changed since the snapshot that was written. A
        written file is durable. Cancelling leaves the old file or the new one, never a part.

        Raises:
            OSError: the file could not be written. It is unchanged, and the next call tries again.
        """
        async with self._lock:
            if self._is_changed:
                await self._take_snapshot()
            snapshot = self._snapshot
            if snapshot is None:
                return True
            if (
                self._log_positions is not None
                and snapshot.position > self._log_positions.synced_position
            ):
                return False
            await self._offload(self._write, snapshot.text)
            self._snapshot = None
            return not self._is_changed

    async def save_soon(self) -> None:
        """Call `save` up to ten times, 0.2 s apart, until the file holds all changes.

        An OSError is logged and left to the next `save`.
        """
        try:
            for _ in range(_SOON_TRIES):
                if await self.save():
                    break
                await asyncio.sleep(_SOON_S)
        except OSError as error:
            log.warning("config_file.not_saved_soon reason=%s", error)

    def _write(self, text: bytes) -> None:
        """Write the file; called on any thread.

        Cancelling `save` does not stop a write that is under way. The next write waits for it,
        because both use the same temporary file.
        """
        with self._write_lock:
            self._file.save(text)

    async def _take_snapshot(self) -> None:
        """Take a snapshot of the table, unless an older one still waits for the log.

        Under a steady stream of sends the log is never synced to its end. Replacing the snapshot
        each time would postpone the write for ever.
        """
        positions = self._log_positions
        is_behind = positions is not None and positions.written_position > positions.synced_position
        if is_behind and self._snapshot is not None:
            return
        self._is_changed = False  # a change from here on may be missing from the text
        try:
            text = await join_parts(self._encode())
        except BaseException:
            self._is_changed = True
            raise
        # Read after the last part, because the text may refer to records written until then.
        self._snapshot = _Snapshot(text, positions.written_position if positions is not None else 0)


async def join_parts(parts: TextParts) -> bytes:
    """Return the joined parts; other tasks run between the parts."""
    texts: list[bytes] = []
    for part in parts:
        if texts:
            await asyncio.sleep(0)
        texts.append(part)
    return b"".join(texts)
