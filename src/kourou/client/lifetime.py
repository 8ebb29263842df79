"""Base classes of objects that are started once and closed once, for `async with`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

from kourou.client.instance import ClientInstance


class Lifetime(ABC):
    """An object that `async with` starts on entry and closes on exit."""

    @abstractmethod
    async def start(self) -> None:
        """Start; possible only once."""

    @abstractmethod
    async def close(self) -> None:
        """Close; a second call has no effect."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    if not TYPE_CHECKING:  # type checkers report it; Python's own error suggests no remedy

        def __enter__(self) -> NoReturn:
            name = type(self).__name__
            raise TypeError(f"use `async with {name}(...)`, or `with kourou.blocking.{name}(...)`")

        def __exit__(self, *_: object) -> None: ...


class CallingClient(Lifetime):
    """A client without work of its own between calls, so that closing its instance is enough."""

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance

    async def start(self) -> None:
        """Start; no request is sent before the first call.

        Raises:
            ClosedError: the client was started before.
        """
        self._instance.start()

    async def close(self) -> None:
        """Close all connections; calls in progress fail. A second call has no effect."""
        if self._instance.stop():
            await self._instance.close()
        else:
            await self._instance.wait_ended()
