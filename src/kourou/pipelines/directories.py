"""Directories that runs write: one run at a time, and the options that define a stream's tables.

    DIRECTORY/windows/               a table of a stream, as Spark's file sink writes it
    DIRECTORY/_stream/options.json   the options that define the tables
    DIRECTORY/_stream/windows/       checkpoint of the query that writes the table
    DIRECTORY/_stream/lock           held by the run that writes

Readers of Parquet ignore names that begin with `_`. A later run continues at the checkpoints, so it
must have the options of the first one. No Spark.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kourou.errors import StoreLockedError, UsageError
from kourou.file_locks import FILE_LOCKS

STREAM: Final = "_stream"
SINK_LOG: Final = "_spark_metadata"
"""Log of Spark's file sink in each table that it writes; it has the batch ids of the checkpoint."""
VERSION: Final = 1

Definition = Mapping[str, str]
"""Name of each command-line option that defines a table, and its value."""


@contextmanager
def exclusive(directory: Path, lock: Path) -> Iterator[None]:
    """Hold the lock file of a directory that one run at a time may write.

    Raises:
        UsageError: another run holds it.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    try:
        unlock = FILE_LOCKS.acquire(str(lock))
    except StoreLockedError:
        raise UsageError(f"{directory} is used by another run: wait for its end") from None
    try:
        yield
    finally:
        unlock()


class StreamDirectory:
    """The directory of a stream.

    Args:
        directory: its path, on a local disk.
        definition: the options of this run.
        tables: names of the tables.

    Raises:
        UsageError: the path is that of another file system, which has no locks.
    """

    def __init__(self, directory: str, definition: Definition, tables: Sequence[str]) -> None:
        if "://" in directory:
            raise UsageError(
                f"--out {directory} is not a directory: the tables and checkpoints of a stream "
                "are on a local disk"
            )
        self.root = Path(directory).expanduser().absolute()
        self._definition = dict(definition)
        self._tables = tuple(tables)

    def table(self, name: str) -> Path:
        """Return the directory of a table."""
        return self.root / name

    def checkpoint(self, name: str) -> Path:
        """Return the checkpoint of the query that writes a table."""
        return self.root / STREAM / name

    @property
    def _options_file(self) -> Path:
        return self.root / STREAM / "options.json"

    def check(self, *, overwrite: bool) -> None:
        """Refuse before Spark starts what `held` would refuse.

        Raises:
            UsageError: as `held`.
        """
        if (self.root / STREAM).is_dir():
            with exclusive(self.root, self.root / STREAM / "lock"):
                pass
        if not overwrite:
            self._check_contents()

    @contextmanager
    def held(self, *, overwrite: bool) -> Iterator[None]:
        """Hold the lock, and write the definition in the first run.

        Args:
            overwrite: delete the tables and the checkpoints of earlier runs.

        Raises:
            UsageError: another run holds it, or the tables are of other options or of no stream.
        """
        with exclusive(self.root, self.root / STREAM / "lock"):
            if overwrite:
                self._clear()
            self._check_contents()
            if not self._options_file.exists():
                text = json.dumps({"version": VERSION, "options": self._definition}, indent=1)
                temporary = self._options_file.with_suffix(".tmp")
                temporary.write_text(text, encoding="utf-8")
                temporary.replace(self._options_file)
            yield

    def _check_contents(self) -> None:
        if self._options_file.exists():
            self._check_definition(self._stored_definition())
            return
        for path in map(self.table, self._tables):
            if path.exists():
                raise UsageError(
                    f"{path} is not of a stream that can be continued: choose another --out DIR, "
                    "or add --overwrite"
                )

    def _stored_definition(self) -> Definition:
        try:
            document = json.loads(self._options_file.read_text(encoding="utf-8"))
            version, options = document["version"], dict(document["options"])
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{self._options_file} is damaged ({error}): choose another --out DIR, or add "
                "--overwrite"
            ) from error
        if version != VERSION:
            raise UsageError(
                f"{self._options_file} has version {version}, but {VERSION} is known: use the "
                "version of Kourou that wrote it, or a later one"
            )
        return options

    def _check_definition(self, stored: Definition) -> None:
        for name in sorted(stored.keys() | self._definition.keys()):
            before, now = stored.get(name, "absent"), self._definition.get(name, "absent")
            if before != now:
                raise UsageError(
                    f"{name} is {now}, but the stream in {self.root} has {before}: use the same, "
                    "choose another --out DIR, or add --overwrite"
                )

    def _clear(self) -> None:
        """Delete the checkpoints, then the tables: tables without a checkpoint are refused."""
        self._options_file.unlink(missing_ok=True)
        for path in (*map(self.checkpoint, self._tables), *map(self.table, self._tables)):
            if path.exists():
                shutil.rmtree(path)
