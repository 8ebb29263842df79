"""Base class of objects that are started once and closed once, for `async with`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self


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
