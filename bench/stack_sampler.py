"""Runs `kourou` and samples the stack of its main thread from another thread.

    python bench/stack_sampler.py FILE serve ...

Use it where no profiler can attach. Once FILE.go exists, the thread samples 500 times per second;
the folded stacks are written to FILE at exit. It can only run when the main thread releases the
global interpreter lock, so long C calls that hold the lock are attributed to the line after them.
That is sufficient to find large costs, but not to compare small differences.
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
    """Return the stack as one line; None if the thread is idle."""
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
        stack = folded(sys._current_frames().get(thread or 0))  # noqa: SLF001 - no public API
        if stack is not None:
            seen[stack] += 1


def main() -> None:
    """Start sampling, then run `kourou` with the arguments after FILE."""
    from kourou.cli.main import main as kourou  # noqa: PLC0415 - not needed to import `folded`

    out = Path(sys.argv.pop(1))
    seen: Counter[str] = Counter()
    atexit.register(
        lambda: out.write_text("".join(f"{stack} {count}\n" for stack, count in dict(seen).items()))
    )
    sys.setswitchinterval(_SWITCH_S)
    me = threading.main_thread().ident
    threading.Thread(target=_sample, args=(seen, me, Path(f"{out}.go")), daemon=True).start()
    kourou()


if __name__ == "__main__":
    main()
