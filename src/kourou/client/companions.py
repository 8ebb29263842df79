"""Companions: objects that start and close with a client, such as its trace writer."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Companion(Protocol):
    """An object that starts with a client and closes after the client has finished its work."""

    def start(self) -> None:
        """Start. Called once, in the running event loop."""

    async def close(self) -> None:
        """Close within a few seconds, without raising."""

    def abort(self) -> None:
        """Stop at once, without notifying any server."""


class Companions:
    """The companions of one client."""

    def __init__(self) -> None:
        self._all: list[Companion] = []

    def add(self, companion: Companion) -> None:
        """Add a companion; must be called before `start`."""
        self._all.append(companion)

    def start(self) -> None:
        """Start all companions."""
        for companion in self._all:
            companion.start()

    async def close(self) -> None:
        """Close all companions concurrently."""
        await asyncio.gather(*(companion.close() for companion in self._all))

    def abort(self) -> None:
        """Abort all companions."""
        for companion in self._all:
            companion.abort()
