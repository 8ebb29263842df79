"""The event loop behind the blocking clients."""

from __future__ import annotations

import itertools
import sys
import threading
from types import FrameType
from typing import Any

from kourou.blocking.background import BackgroundLoop

LIMIT_S = 30


async def answer() -> int:
    return 42


class Interrupted(threading.Thread):
    """A call that is interrupted, as by Ctrl-C, before the n-th line of `BackgroundLoop.run`."""

    def __init__(self, loop: BackgroundLoop, lines: int) -> None:
        super().__init__(daemon=True)
        self._loop = loop
        self._lines_left = lines
        self.was_interrupted = False
        self.answers: list[int] = []

    def run(self) -> None:
        sys.settrace(self._trace)
        try:
            self.answers.append(self._loop.run(answer))
        except KeyboardInterrupt:
            self.was_interrupted = True
        finally:
            sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code is not BackgroundLoop.run.__code__:
            return None
        if event == "line":
            self._lines_left -= 1
            if not self._lines_left:
                raise KeyboardInterrupt
        return self._trace


def test_loop_serves_calls_after_an_interrupt_at_any_moment_of_another_call() -> None:
    loop = BackgroundLoop()
    for lines in itertools.count(1):
        call = Interrupted(loop, lines)
        call.start()
        call.join(LIMIT_S)
        assert not call.is_alive(), f"the call interrupted before line {lines} does not end"
        later = Interrupted(loop, 0)  # never
        later.start()
        later.join(LIMIT_S)
        assert later.answers == [42], f"no call is served after an interrupt before line {lines}"
        if not call.was_interrupted:
            return
