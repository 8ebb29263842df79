"""State of a single controller, in one file of a directory.

The file is one JSON object with a checksum, and each write replaces it durably. There is no backup:
an older state would give out epochs and ids again. The directory has a lock, so that a second
controller on it is refused. This controller is a single point of failure.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kourou.controller.broker_set import BrokerSet, check_broker_set
from kourou.controller.state_store import Member, Stored, Term, WriteResult
from kourou.disk import Disk, replace
from kourou.errors import (
    ControllerStateError,
    MalformedBodyError,
    StoreLockedError,
    WriteInDoubtError,
)
from kourou.protocol.json_records import encode_record, record_functions
from kourou.remoting.runtime import Offload
from kourou.store.state.config_file import seal, unseal

log = logging.getLogger(__name__)

FILE_NAME: Final = "controller.json"
LOCK: Final = "lock"


@dataclass(frozen=True, slots=True)
class _StoredSet:
    version: int
    broker_set: BrokerSet


@dataclass(frozen=True, slots=True)
class _State:
    """The file's object.

    Attributes:
        lease_ms: the longest lease that the controller has confirmed.
    """

    lease_ms: int
    sets: tuple[_StoredSet, ...] = ()


_decode, _ = record_functions(_State, FILE_NAME)


class FileStore:
    """State in a directory; see `StateStore`.

    Args:
        disk: the directory; the caller closes it, after `close`.
        offload: runs file calls off the event loop.
        lease_ms: the longest lease that this controller confirms.
    """

    def __init__(self, disk: Disk, offload: Offload, lease_ms: int) -> None:
        self._disk = disk
        self._offload = offload
        self._lease_ms = lease_ms
        self._sets: dict[str, Stored] = {}
        self._texts: dict[str, bytes] = {}  # each set in the file: encoding all takes long
        self._sequence = 0
        self._member: Member | None = None
        self._deposed = asyncio.Event()
        self._unlock: Callable[[], None] | None = None

    def open(self) -> None:
        """Lock the directory and read the file.

        Raises:
            StoreLockedError: another controller uses the directory.
            ControllerStateError: the file is damaged.
            OSError: the file cannot be read.
        """
        try:
            self._unlock = self._disk.lock(LOCK)
        except StoreLockedError:
            raise StoreLockedError(
                "the directory is locked by another controller: stop that one, or use another "
                "directory"
            ) from None
        if not self._disk.exists(FILE_NAME):
            return
        text = self._disk.read(FILE_NAME, 0, self._disk.size(FILE_NAME))
        try:
            state = self._parse(text)
        except MalformedBodyError as error:
            raise ControllerStateError(
                f"{FILE_NAME} is damaged: {error}. Restore the newest copy of the directory; an "
                "older one is refused when a broker reports a newer epoch"
            ) from None
        self._lease_ms = max(self._lease_ms, state.lease_ms)
        self._sets = {
            one.broker_set.broker_name: Stored(one.broker_set, one.version) for one in state.sets
        }
        self._texts = {name: _text_of(one) for name, one in self._sets.items()}

    def _parse(self, text: bytes) -> _State:
        data, self._sequence = unseal(text)
        if not self._sequence:
            raise MalformedBodyError("its checksum is missing")
        state = _decode(data)
        for one in state.sets:
            check_broker_set(one.broker_set)
        return state

    async def campaign(self, member: Member) -> Term:
        """Return the state at once: there is no other controller."""
        self._member = member
        # The next start must wait for the leases that this one confirms.
        await self._save(self._texts)
        return Term(dict(self._sets), self._lease_ms)

    @property
    def problem(self) -> str | None:
        return None

    def leads(self) -> bool:
        return self._member is not None and not self._deposed.is_set()

    async def wait_deposed(self) -> None:
        await self._deposed.wait()

    async def resign(self) -> bool:
        return False

    async def write(self, name: str, broker_set: BrokerSet | None, version: int) -> WriteResult:
        current = self._sets.get(name)
        if version != (0 if current is None else current.version):
            return WriteResult(is_written=False, stored=current)
        stored = None if broker_set is None else Stored(broker_set, self._sequence + 1)
        texts = {other: text for other, text in self._texts.items() if other != name}
        if stored is not None:
            texts[name] = _text_of(stored)
        await self._save(texts)
        self._texts = texts
        if stored is None:
            self._sets.pop(name, None)
        else:
            self._sets[name] = stored
        return WriteResult(is_written=True, stored=stored)

    async def leader(self) -> Member | None:
        return self._member

    async def members(self) -> list[Member]:
        return [] if self._member is None else [self._member]

    async def close(self) -> None:
        self._deposed.set()
        if self._unlock is not None:
            self._unlock()
            self._unlock = None

    async def _save(self, texts: dict[str, bytes]) -> None:
        # A failed save may be on disk: the next one needs another number.
        self._sequence += 1
        state = b'{"leaseMs":%d,"sets":[%b]}' % (self._lease_ms, b",".join(texts.values()))
        text = seal(state, self._sequence)
        try:
            await self._offload(replace, self._disk, FILE_NAME, text, backup=None)
        except OSError as error:
            raise WriteInDoubtError(f"{FILE_NAME} cannot be written: {error}") from error


def _text_of(stored: Stored) -> bytes:
    return encode_record(_StoredSet(stored.version, stored.broker_set))
