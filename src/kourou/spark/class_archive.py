"""Archive of the Java classes of Spark, from which later sessions start and read sooner.

Java reads, parses and verifies some 20,000 classes of Spark's jars in a session's first query. From
an archive of loaded classes (class data sharing) it maps them into memory. Java writes the archive
when the first session ends, with the classes that this session used, about 160 MB.
"""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path
from typing import Final

from kourou.spark.java import Java

log = logging.getLogger(__name__)

_MAGIC_BYTES: Final = 4
_LOG_OPTION: Final = "-Xlog:cds*=off"
"""Java warns of each class that it leaves out, and of an archive that does not match."""


UNUSED_DAYS_MAX: Final = 30
"""An archive that no session used for so long is deleted: that of a virtual environment, say, which
is gone."""
_DAY_S: Final = 86_400


def archive_options(java: Java, jars: Path, cache: Path, now_ms: int) -> str:
    """Return Java's options to use the archive below `cache`, or to write it as Java exits.

    Java refuses an archive of another Java, or of jars with other times or sizes, so its name
    depends on both, and archives of earlier jars are deleted. Several sessions may write one at
    once: Java replaces the file, and writes the header last.

    Args:
        java: the Java that will run.
        jars: Spark's directory of jars.
        cache: directory for the archive. It is created; if that fails, a message is logged.
        now_ms: epoch milliseconds.

    Returns:
        the options, separated by spaces; empty if Java was built without its own archive, on which
        this one depends, or if a path contains a space.
    """
    if not (java.home / "lib" / "server" / "classes.jsa").exists():
        return ""
    prefix = f"spark-{_digest(java.home, java.version, jars)}-"
    files = sorted(jars.glob("*.jar"))
    archive = cache / f"{prefix}{_digest(*((file.name, _version(file)) for file in files))}.jsa"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        oldest_s = now_ms / 1000 - UNUSED_DAYS_MAX * _DAY_S
        for other in cache.glob("spark-*.jsa"):
            if other != archive and (
                other.name.startswith(prefix) or other.stat().st_mtime < oldest_s
            ):
                other.unlink(missing_ok=True)
        is_whole = _is_whole(archive)
        if is_whole:
            os.utime(archive, (now_ms / 1000, now_ms / 1000))  # it is in use
    except OSError as error:
        log.warning("class_archive.failed directory=%s error=%s", cache, error)
        return ""
    if " " in str(archive):
        return ""
    option = "SharedArchiveFile" if is_whole else "ArchiveClassesAtExit"
    return f"-XX:{option}={archive} {_LOG_OPTION}"


def _digest(*values: object) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()[:12]


def _version(file: Path) -> tuple[int, int]:
    """Return what Java compares of a jar: its time and size."""
    status = file.stat()
    return status.st_mtime_ns, status.st_size


def _is_whole(archive: Path) -> bool:
    """Whether Java finished writing an archive: the magic number is in place only then."""
    try:
        with archive.open("rb") as file:
            return any(file.read(_MAGIC_BYTES))
    except OSError:
        return False
