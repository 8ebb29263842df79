"""Changes by tools are answered when they are on the disk."""

from __future__ import annotations

from typing import Protocol

from kourou.errors import RemoteSystemError
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import RemotingCommand


class SavedTable(Protocol):
    """A table that has a file."""

    async def persist(self) -> object: ...


async def when_saved(answer: RemotingCommand, *tables: SavedTable) -> RemotingCommand:
    """Return the answer once the tables are on the disk.

    Raises:
        RemoteSystemError: they cannot be written.
    """
    try:
        for table in tables:
            await table.persist()
    except OSError as error:
        raise RemoteSystemError(
            ResponseCode.SYSTEM_ERROR,
            f"the change holds until the broker stops, but could not be saved: {error}",
        ) from error
    return answer
