"""What lives and ends with a client, and is no part of it: what writes its traces."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Companion(Protocol):
    """Starts when a client does, and ends when that has nothing more to do."""

    def start(self) -> None:
        """Begin to work. Called once, inside the running loop."""

    async def close(self) -> None:
        """End, in some seconds at most. Raises nothing."""

    def abort(self) -> None:
        """End at once and tell nobody."""


class Companions:
    """Those of one client."""

    def __init__(self) -> None:
        self._all: list[Companion] = []

    def add(self, companion: Companion) -> None:
        """Have one more; to be called before the start."""
        self._all.append(companion)

    def start(self) -> None:
        """Start all."""
        for companion in self._all:
            companion.start()

    async def close(self) -> None:
        """Close all, at the same time."""
        await asyncio.gather(*(companion.close() for companion in self._all))

    def abort(self) -> None:
        """Abort all."""
        for companion in self._all:
            companion.abort()
