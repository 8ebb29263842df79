"""Saves changed tables before an administrator's request is answered."""

from __future__ import annotations

from typing import Protocol

from kourou.errors import RemoteSystemError
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import RemotingCommand


class SavedTable(Protocol):
    """A table with a file of its own."""

    async def persist(self) -> object: ...


async def save_and_answer(answer: RemotingCommand, *tables: SavedTable) -> RemotingCommand:
    """Save the tables, and return the answer.

    Raises:
        RemoteSystemError: a table cannot be written. The change is in effect, but not durable.
    """
    try:
        for table in tables:
            await table.persist()
    except OSError as error:
        raise RemoteSystemError(
            ResponseCode.SYSTEM_ERROR,
            f"the change is in effect, but could not be saved; a restart may lose it: {error}",
        ) from error
    return answer
