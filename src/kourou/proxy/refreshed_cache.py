"""A cache whose values are reloaded in the background, and served while they cannot be."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from kourou.errors import KourouError

log = logging.getLogger(__name__)
V = TypeVar("V")

REFRESH_S: Final = 20.0
"""Age in seconds from which a value is reloaded when it is used."""
EXPIRY_S: Final = 300.0
"""Seconds without use after which a value is loaded again before it is returned."""
ENTRIES_MAX: Final = 20_000


@dataclass(slots=True)
class _Entry(Generic[V]):
    value: V
    loaded_s: float
    used_s: float


class RefreshedCache(Generic[V]):
    """Values by key. Created inside a running loop.

    Keys without a value are not cached, so that a caller finds what was created a moment ago.

    Args:
        load: returns the present value of a key; None if there is none. While it raises
            KourouError, the cached value is returned.
        name: of the cache, in the log.
    """

    def __init__(self, load: Callable[[str], Awaitable[V | None]], name: str) -> None:
        self._load = load
        self._name = name
        self._entries: dict[str, _Entry[V]] = {}  # in the order of last use
        self._loads: dict[str, asyncio.Task[V | None]] = {}

    async def get(self, key: str) -> V | None:
        """Return the value of a key; None if there is none.

        Raises:
            KourouError: loading failed, and no value is cached.
        """
        entry = self._entries.pop(key, None)
        if entry is None:
            return await asyncio.shield(self._start_load(key))
        self._entries[key] = entry
        if (value := self.known(key)) is not None:
            return value
        entry.used_s = asyncio.get_running_loop().time()
        try:
            return await asyncio.shield(self._start_load(key))
        except KourouError:
            return entry.value

    def known(self, key: str) -> V | None:
        """Return the cached value of a key; None if it must be loaded first, or if there is none.

        An old value is reloaded, as by `get`.
        """
        entry = self._entries.get(key)
        if entry is None:
            return None
        now_s = asyncio.get_running_loop().time()
        if now_s - entry.used_s > EXPIRY_S:
            return None
        entry.used_s = now_s
        if now_s - entry.loaded_s >= REFRESH_S:
            self._start_load(key)
        return entry.value

    def close(self) -> None:
        """Cancel the loads in progress."""
        for load in self._loads.values():
            load.cancel()

    def _start_load(self, key: str) -> asyncio.Task[V | None]:
        """Return the load of a key that is in progress, or start one."""
        task = self._loads.get(key)
        if task is None:
            task = asyncio.create_task(self._store(key), name=f"{self._name} {key}")
            self._loads[key] = task
            task.add_done_callback(lambda done: self._end_load(key, done))
        return task

    async def _store(self, key: str) -> V | None:
        value = await self._load(key)
        entry = self._entries.pop(key, None)
        if value is not None:
            now_s = asyncio.get_running_loop().time()
            used_s = now_s if entry is None else entry.used_s
            self._entries[key] = _Entry(value, now_s, used_s)
            while len(self._entries) > ENTRIES_MAX:
                del self._entries[next(iter(self._entries))]
        return value

    def _end_load(self, key: str, task: asyncio.Task[V | None]) -> None:
        del self._loads[key]
        if task.cancelled() or (error := task.exception()) is None:
            return
        entry = self._entries.get(key)
        if entry is not None:
            # The next attempt follows after another interval, not with the next call.
            entry.loaded_s = asyncio.get_running_loop().time()
            log.info("metadata.kept cache=%s key=%s reason=%s", self._name, key, error)
