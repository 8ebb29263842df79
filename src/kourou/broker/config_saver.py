"""Writing a table to its config file: off the loop, one write at a time, never ahead of the log.

The text is made on the loop, in parts between which others are served: made at once on another
thread, it would still hold up the loop, which waits for the interpreter after each system call.

A table of offsets may say "all before 42 is done" only when a crash cannot take 42 back. In sync
mode nothing unsynced is visible, so that committed offsets may be written at once; with
ASYNC_FLUSH what was taken waits until the log is synced as far as it was written then.

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
"""Between two of them: the log is synced twice a second, if nobody waits for that."""


class SavedFile(Protocol):
    """A file that is replaced as a whole, see `kourou.store.state.config_file.ConfigFile`."""

    def load(self) -> bytes | None: ...

    def save(self, data: bytes) -> None: ...


class LogPositions(Protocol):
    """How far the commit log is written and synced, in bytes."""

    @property
    def written_position(self) -> int: ...

    @property
    def synced_position(self) -> int: ...


TextParts = Iterable[bytes]
"""The text of a table in parts, each made when it is asked for, in about a millisecond."""


@dataclass(slots=True)
class _Taken:
    """A table that waits to be written, and the log position that it may lean on."""

    text: bytes
    position: int


class ConfigSaver:
    """Saves one table when it changed.

    The table calls `changed`; its owner calls `save` now and then, and before it closes.
    """

    def __init__(
        self,
        file: SavedFile,
        take: Callable[[], TextParts],
        offload: Offload,
        covered_by: LogPositions | None = None,
    ) -> None:
        """Save to `file` what `take` takes.

        Args:
            file: written off the loop.
            take: called on the loop, which serves others between the parts. What changes meanwhile
                may be in them or not, since the table calls `changed` for it.
            offload: takes blocking calls off the loop.
            covered_by: the log that the table must not run ahead of; None when it does not speak
                of the log, or only of what is synced.
        """
        self._file = file
        self._take_table = take
        self._offload = offload
        self._covered_by = covered_by
        self._is_changed = False
        self._taken: _Taken | None = None
        self._lock = asyncio.Lock()
        self._writing = threading.Lock()

    def changed(self) -> None:
        """Note that the table differs from the file."""
        self._is_changed = True

    async def save(self) -> bool:
        """Write the table if it changed, and return whether the file holds all changes now.

        False means that the log is not yet synced as far as the table speaks of it: what was
        taken before is written, and the rest follows with a later call. When it is written, it
        is durable. Cancelling leaves the old file or the new one, never half of one.

        Raises:
            OSError: the file could not be written; it is as it was, and the next call tries again.
        """
        async with self._lock:
            if self._is_changed:
                await self._take()
            taken = self._taken
            if taken is None:
                return True
            if self._covered_by is not None and taken.position > self._covered_by.synced_position:
                return False
            await self._offload(self._write, taken.text)
            self._taken = None
            return not self._is_changed

    async def save_soon(self) -> None:
        """Save, and once more when the log may be synced so far; what fails is left to `save`."""
        try:
            for _ in range(_SOON_TRIES):
                if await self.save():
                    break
                await asyncio.sleep(_SOON_S)
        except OSError as error:
            log.warning("config_file.not_saved_soon reason=%s", error)

    def _write(self, text: bytes) -> None:
        """Write the file, on whatever thread.

        Whoever gave up waiting for a slow disk did not stop the write: the next one waits for it,
        since both would write to the same temporary file.
        """
        with self._writing:
            self._file.save(text)

    async def _take(self) -> None:
        """Take the table of now, unless an older one that waits for the log would be lost for it.

        Under a steady stream of sends the log is never synced to its end; replacing it each
        time would put the write off for ever.
        """
        followed = self._covered_by
        is_behind = followed is not None and followed.written_position > followed.synced_position
        if is_behind and self._taken is not None:
            return
        self._is_changed = False  # what changes from here on may be missing
        try:
            text = await joined(self._take_table())
        except BaseException:
            self._is_changed = True
            raise
        # Of after the last part: it may speak of all that was written until then.
        self._taken = _Taken(text, followed.written_position if followed is not None else 0)


async def joined(parts: TextParts) -> bytes:
    """Return the whole text, made between the turns of others."""
    made: list[bytes] = []
    for part in parts:
        if made:
            await asyncio.sleep(0)
        made.append(part)
    return b"".join(made)
