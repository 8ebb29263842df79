"""`async with` for what is started once and closed once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

from kourou.client.instance import ClientInstance


class Lifetime(ABC):
    """Something that `async with` starts on the way in and closes on the way out."""

    @abstractmethod
    async def start(self) -> None:
        """Begin to work."""

    @abstractmethod
    async def close(self) -> None:
        """End; a second time is harmless."""

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

    if not TYPE_CHECKING:  # checkers know; Python's own error names no way out

        def __enter__(self) -> NoReturn:
            name = type(self).__name__
            raise TypeError(f"use `async with {name}(...)`, or `with kourou.blocking.{name}(...)`")

        def __exit__(self, *_: object) -> None: ...


class CallingClient(Lifetime):
    """A client that works only while it is called, so that its instance is all there is to end."""

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance

    async def start(self) -> None:
        """Begin to work; no server is asked for anything before the first call.

        Raises:
            ClosedError: it was started before.
        """
        self._instance.start()

    async def close(self) -> None:
        """Disconnect; calls under way fail. Closing twice is harmless."""
        if self._instance.stop():
            await self._instance.close()
        else:
            await self._instance.wait_ended()
