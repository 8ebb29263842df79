"""Requests answered later by a coroutine, because the response waits for the disk or a server.

Held pulls and sends do not use this: they wait in tables, without a task each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from kourou.errors import SystemBusyError
from kourou.protocol.command import RemotingCommand
from kourou.remoting.connection import Request
from kourou.remoting.dispatch import reply_error

RUNNING_MAX: Final = 10_000
"""Coroutines that may run at once; one more request is answered SYSTEM_BUSY."""


class DeferredReplies:
    """Runs the coroutines of one server that answer requests."""

    def __init__(self, running_max: int = RUNNING_MAX) -> None:
        self._running_max = running_max
        self._running: set[asyncio.Task[None]] = set()

    def answer(
        self, request: Request, serve: Callable[[], Coroutine[Any, Any, RemotingCommand | None]]
    ) -> None:
        """Answer the request with the result of `serve`, or with the error it raises.

        Returns immediately. A oneway request is served but not answered. If the result is None, it
        is answered by something that `serve` has started.

        Raises:
            SystemBusyError: `running_max` coroutines run already; `serve` was not called.
        """
        if len(self._running) >= self._running_max:
            raise SystemBusyError(2, f"{self._running_max} requests are waiting already")
        task = asyncio.get_running_loop().create_task(_serve(request, serve))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def close(self) -> None:
        """Wait until all requests are answered; `answer` must not be called meanwhile."""
        while self._running:
            await asyncio.wait(self._running)

    def abandon(self) -> None:
        """Cancel all coroutines without answering, as a killed process would."""
        for task in self._running:
            task.cancel()


async def _serve(
    request: Request, serve: Callable[[], Coroutine[Any, Any, RemotingCommand | None]]
) -> None:
    try:
        answer = await serve()
    except Exception as error:  # noqa: BLE001 - it becomes the answer, and is logged there
        reply_error(request, error)
    else:
        if answer is not None:
            request.reply(answer)
