"""The official `mqadmin` 5.5.0 as a long-running process that runs many commands in turn."""

from __future__ import annotations

import base64
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.interop.clients import admin_command

_END_SECONDS = 20

_MASKS = (
    (r"\d+\.\d+\.\d+\.\d+:\d+", "ADDRESS"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(,\d+)?", "TIME"),
    (r"\b20\d{15}\b", "TIME"),
    (r"\b1[6-9]\d{11}\b", "TIME"),
    (r"\b[0-9A-F]{30,}\b", "ID"),
    (r"@\d+#[0-9a-f]+", "@INSTANCE"),
    (r"\b\d+\.\d+\b", "RATE"),
    (r"\brt=\d+ms", "rt=RATE"),
    (r"__CRC32#=\d+", "__CRC32#=CRC"),
    (r"/\S*/export/", "EXPORT/"),
    # The failures must be equal; their texts and stack traces may differ.
    (r"(?m)^\t(at |\.\.\. ).*\n", ""),
    (r"(CODE: \d+ +DESC: ).*\n(?:(?!Caused|\t).*\n)*", r"\1REMARK\n"),
    (r"For more information.*\n?|See https?:.*details\.|No registered broker has.*", ""),
    (r" *\n", "\n"),
    (r" {2,}", "  "),
    (r"\b(true|CLUSTERING)  \d+", r"\1  RATE"),  # how long a send took; messages a second
)
"""Values that differ in each run: addresses, times, ids and rates."""


@dataclass(frozen=True)
class Printed:
    """The output of a command."""

    out: str
    err: str

    @property
    def is_failure(self) -> bool:
        """True if its output shows a failure; the exit code does not."""
        return "Exception" in self.err or "SubCommandException" in self.out


class Mqadmin:
    """A running `mqadmin` for one name server. Leaving its `with` block ends it."""

    def __init__(self, namesrv_addr: str, directory: Path) -> None:
        """Start it.

        Args:
            namesrv_addr: `host:port`, passed to each command.
            directory: working directory, because some commands write files there.
        """
        self._namesrv_addr = namesrv_addr
        self._process = subprocess.Popen(
            admin_command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=directory,
        )

    def run(self, *words: str) -> Printed:
        """Run one command."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\t".join((*words, "-n", self._namesrv_addr)) + "\n")
        self._process.stdin.flush()
        return Printed(*(self._read(name) for name in ("out", "err")))

    def _read(self, name: str) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        reported, _, text = line.rstrip("\n").partition(" ")
        assert reported == name, f"mqadmin ended, or printed {line!r} by itself"
        return base64.b64decode(text).decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS)
        finally:
            self._process.kill()
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()


def mask(printed: Printed) -> str:
    """Return the output with values that differ in each run masked."""
    text = f"{printed.out}\nERR {printed.err}"
    for pattern, word in _MASKS:
        text = re.sub(pattern, word, text)
    return text
