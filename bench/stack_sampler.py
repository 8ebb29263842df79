"""Runs `kourou` and samples its main thread's stack from within, where no profiler may attach.

    python bench/stack_sampler.py FILE serve ...

From when FILE.go exists a thread looks 500 times a second; FILE gets folded stacks at the end. It
looks only when the interpreter lets another thread run, so that long calls of C code that keep its
lock are seen as the line after them: good enough to find what is large, not to compare small
differences.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Final

_PERIOD_S: Final = 0.002
_LOOK_S: Final = 0.05
_SWITCH_S: Final = 0.0005
_IDLE_FILES: Final = ("selectors.py", "asyncio/runners.py")


def folded(frame: FrameType | None) -> str | None:
    """Return the stack as one line; None where the thread waits for something to do."""
    if frame is None or frame.f_code.co_filename.endswith(_IDLE_FILES):
        return None
    parts = []
    while frame is not None:
        code = frame.f_code
        parts.append(f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})")
        frame = frame.f_back
    return ";".join(reversed(parts))


def _sample(seen: Counter[str], thread: int | None, go: Path) -> None:
    while not go.exists():
        time.sleep(_LOOK_S)
    while True:
        time.sleep(_PERIOD_S)
        stack = folded(sys._current_frames().get(thread or 0))  # noqa: SLF001 - there is no other way
        if stack is not None:
            seen[stack] += 1


def main() -> None:
    """Start sampling, then be `kourou` with the words after FILE."""
    from kourou.cli.main import main as kourou  # noqa: PLC0415 - not when `folded` is imported

    out = Path(sys.argv.pop(1))
    seen: Counter[str] = Counter()
    atexit.register(
        lambda: out.write_text("".join(f"{stack} {count}\n" for stack, count in seen.items()))
    )
    sys.setswitchinterval(_SWITCH_S)
    me = threading.main_thread().ident
    threading.Thread(target=_sample, args=(seen, me, Path(f"{out}.go")), daemon=True).start()
    kourou()


if __name__ == "__main__":
    main()
