"""Files of an archive: partitioned Parquet that batches extend atomically. No Spark.

    DIRECTORY/topic=orders/hour=2026010112/broker-a-0-1200-1450.parquet
    DIRECTORY/_manifests/00000007.json         the files of batch 7, and the offsets after it
    DIRECTORY/_staging/                        files of a batch that is not complete
    DIRECTORY/_checkpoint/                     of a running stream; of no use to the next run
    DIRECTORY/_lock                            held by the run that writes

A file contains the messages of one queue and hour (of store time, UTC); its name has the broker,
the queue, the first offset and the offset after the last one. Tasks write into `_staging`. The
journal `_staging/00000007.json` then commits the batch: its files are moved into place, and the
journal becomes the manifest. After a crash, `recover` completes a batch with a journal and deletes
the files of one without. The offsets of the manifests alone tell what is archived: messages below
them are skipped, so that a repeated batch stores nothing twice, and batch runs, streams and
compactions can follow each other in any order. Readers ignore names that begin with `_`.
`DIRECTORY` is on a file system that the driver and all executors share.

`compact` joins small files: its manifest adds new files and replaces the old ones, which are moved
to `_replaced` until the next compaction, for readers that have opened them.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kourou.errors import UsageError
from kourou.pipelines.directories import exclusive

MANIFESTS, STAGING, REPLACED = "_manifests", "_staging", "_replaced"
LOCK, CHECKPOINT = "_lock", "_checkpoint"
VERSION: Final = 1

_OPEN_FILES_MAX: Final = 64
"""Maximum number of files that a task writes at once; the one written least recently is closed."""

COMPACTED_BYTES: Final = 128 * 1024 * 1024
"""Target size of a file that `compact` writes."""
_BATCH_ROWS: Final = 1_000

_NULL_HOUR: Final = "__HIVE_DEFAULT_PARTITION__"
"""Hive's name of the partition of null."""

STAGED_SCHEMA: Final = (
    "staged STRING, topic STRING, hour STRING, brokerName STRING, queueId INT, start BIGINT, "
    "until BIGINT, rows BIGINT, bytes BIGINT, lastStoredMs BIGINT"
)

Queue = tuple[str, str, int]
"""Topic, broker name, queue id."""


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """One file of the archive.

    Attributes:
        path: relative to the directory.
        staged: name of the file in the staging directory until the batch is complete.
        start, until: first offset, and the offset after the last one.
        bytes: size of the file.
        lastStoredMs: store time of the message before `until`, epoch ms; None in archives of
            earlier versions, and in files that a compaction wrote.
    """

    path: str
    staged: str
    topic: str
    hour: str
    brokerName: str  # noqa: N815 - a column of the source
    queueId: int  # noqa: N815
    start: int
    until: int
    rows: int
    bytes: int
    lastStoredMs: int | None = None  # noqa: N815


@dataclass(frozen=True, slots=True)
class Manifest:
    """The result of one batch or compaction.

    Attributes:
        batch: number of the batch; compactions are numbered with the batches.
        files: the files that it added.
        replaces: paths of the files that these replace.
    """

    batch: int
    files: tuple[ArchivedFile, ...]
    replaces: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the text of the manifest."""
        document = {
            "version": VERSION,
            "batch": self.batch,
            "files": [asdict(file) for file in self.files],
            "replaces": list(self.replaces),
        }
        return json.dumps(document, indent=1)

    @staticmethod
    def from_json(text: str, name: str) -> Manifest:
        """Return the manifest in a file.

        Raises:
            UsageError: it is of another version, or damaged; the error has the file's name.
        """
        try:
            document = json.loads(text)
            if document["version"] != VERSION:
                raise UsageError(
                    f"{name} has version {document['version']}, but {VERSION} is known: use the "
                    "version of Kourou that wrote it, or a later one"
                )
            files = tuple(ArchivedFile(**file) for file in document["files"])
            return Manifest(int(document["batch"]), files, tuple(document["replaces"]))
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{name} is damaged ({error}): restore it from a backup") from error


class Archive:
    """An archive directory: its manifests, and the way in which batches become part of it."""

    def __init__(self, directory: str) -> None:
        if "://" in directory:
            raise UsageError(
                f"{directory} is not a directory: an archive is on a file system that the driver "
                "and all executors share"
            )
        self.root = Path(directory).expanduser().absolute()
        self._read: dict[str, Manifest] = {}

    @property
    def staging(self) -> Path:
        """The directory of files that are not part of the archive yet."""
        return self.root / STAGING

    @property
    def checkpoint(self) -> Path:
        """The directory that Spark requires of a stream; each run starts with an empty one."""
        return self.root / CHECKPOINT

    def locked(self) -> AbstractContextManager[None]:
        """Hold the archive's lock: two runs at once would delete each other's staged files.

        Raises:
            UsageError: another run holds it.
        """
        return exclusive(self.root, self.root / LOCK)

    def manifests(self) -> list[Manifest]:
        """Return the manifests, sorted by batch."""
        paths = sorted((self.root / MANIFESTS).glob("*.json"))
        for path in paths:
            if path.name not in self._read:  # a manifest never changes
                text = path.read_text(encoding="utf-8")
                self._read[path.name] = Manifest.from_json(text, str(path))
        return [self._read[path.name] for path in paths]

    def files(self) -> list[ArchivedFile]:
        """Return the files of the archive that no compaction replaced."""
        found = {file.path: file for manifest in self.manifests() for file in manifest.files}
        for manifest in self.manifests():
            for path in manifest.replaces:
                found.pop(path, None)
        return list(found.values())

    def next_batch(self) -> int:
        """Return the number of the batch after the last one."""
        return max((manifest.batch for manifest in self.manifests()), default=-1) + 1

    def last_files(self) -> dict[Queue, ArchivedFile]:
        """Return for each queue the file that was written with its last archived message."""
        found: dict[Queue, ArchivedFile] = {}
        for manifest in self.manifests():
            for file in manifest.files if not manifest.replaces else ():
                key = (file.topic, file.brokerName, file.queueId)
                if key not in found or found[key].until < file.until:
                    found[key] = file
        return found

    def offsets(self) -> dict[Queue, int]:
        """Return for each queue the offset after its last archived message."""
        return {queue: file.until for queue, file in self.last_files().items()}

    def recover(self) -> None:
        """Complete batches that were committed, and delete the files of the others."""
        for journal in sorted(self.staging.glob("*.json")):
            manifest = Manifest.from_json(journal.read_text(encoding="utf-8"), str(journal))
            self._put_in_place(manifest)
        shutil.rmtree(self.staging, ignore_errors=True)

    def commit(self, manifest: Manifest) -> None:
        """Make the staged files of a batch part of the archive.

        The batch is durable when the journal is written; a crash after that is completed by
        `recover`.
        """
        self.staging.mkdir(parents=True, exist_ok=True)
        _write_durably(self._journal_path(manifest.batch), manifest.to_json())
        self._put_in_place(manifest)

    def _put_in_place(self, manifest: Manifest) -> None:
        for path in manifest.replaces:
            _move(self.root / path, self.root / REPLACED / path)
        for file in manifest.files:
            _move(self.staging / file.staged, self.root / file.path)
        journal, final = self._journal_path(manifest.batch), self._manifest_path(manifest.batch)
        final.parent.mkdir(parents=True, exist_ok=True)
        journal.replace(final)
        _sync_directory(final.parent)

    def _journal_path(self, batch: int) -> Path:
        return self.staging / f"{batch:08d}.json"

    def _manifest_path(self, batch: int) -> Path:
        return self.root / MANIFESTS / f"{batch:08d}.json"

    def compact(self, below_bytes: int, target_bytes: int = COMPACTED_BYTES) -> Manifest | None:
        """Join the files of each topic and hour that are smaller than a size.

        Returns:
            The manifest; None if no topic and hour has two such files.
        """
        self.recover()
        shutil.rmtree(self.root / REPLACED, ignore_errors=True)
        by_hour: dict[tuple[str, str], list[ArchivedFile]] = {}
        for file in sorted(self.files(), key=lambda one: (one.brokerName, one.queueId, one.start)):
            if file.bytes < below_bytes:
                by_hour.setdefault((file.topic, file.hour), []).append(file)
        batch = self.next_batch()
        joined: list[ArchivedFile] = []
        replaced: list[str] = []
        self.staging.mkdir(parents=True, exist_ok=True)
        for files in by_hour.values():
            for group in _grouped(files, target_bytes):
                name = f"compact-{batch}-{len(joined)}"
                joined.append(self._joined(group, name))
                replaced += [file.path for file in group]
        if not joined:
            return None
        manifest = Manifest(batch, tuple(joined), tuple(replaced))
        self.commit(manifest)
        return manifest

    def _joined(self, files: Sequence[ArchivedFile], name: str) -> ArchivedFile:
        """Stage one file with the rows of several; one row group is in memory at a time."""
        target = self.staging / f"{name}.parquet"
        with pq.ParquetFile(self.root / files[0].path) as first:
            schema = first.schema_arrow
        with pq.ParquetWriter(target, schema, compression="zstd") as writer:
            for file in files:
                with pq.ParquetFile(self.root / file.path) as source:
                    for batch in source.iter_batches(_BATCH_ROWS):
                        writer.write_batch(batch)
        _sync_file(target)
        topic, hour = files[0].topic, files[0].hour
        return ArchivedFile(
            path=file_path(topic, hour, name),
            staged=target.name,
            topic=topic,
            hour=hour,
            brokerName="",
            queueId=-1,
            start=0,
            until=0,
            rows=sum(file.rows for file in files),
            bytes=target.stat().st_size,
        )


def _grouped(files: Sequence[ArchivedFile], target_bytes: int) -> Iterator[list[ArchivedFile]]:
    """Yield groups of at least two files, each of about the target size."""
    group: list[ArchivedFile] = []
    for file in files:
        if group and sum(one.bytes for one in group) + file.bytes > target_bytes:
            if len(group) > 1:
                yield group
            group = []
        group.append(file)
    if len(group) > 1:
        yield group


def file_path(topic: str, hour: str, name: str) -> str:
    """Return the path of a file in the archive; names are escaped as Hive and Spark do."""
    return f"topic={quote(topic, safe='')}/hour={hour}/{quote(name, safe='')}.parquet"


def placed(rows: Iterable[Mapping[str, Any]]) -> tuple[ArchivedFile, ...]:
    """Return the files that tasks staged, with their paths in the archive, sorted by path."""
    files = [
        ArchivedFile(
            path=file_path(
                row["topic"],
                row["hour"],
                f"{row['brokerName']}-{row['queueId']}-{row['start']}-{row['until']}",
            ),
            **row,
        )
        for row in rows
    ]
    return tuple(sorted(files, key=lambda file: file.path))


_Key = tuple[str, str, str, int]
"""Topic, hour, broker name, queue id."""


@dataclass(slots=True)
class _OpenFile:
    """A staged file that a task writes."""

    writer: pq.ParquetWriter
    row: dict[str, Any]


def stage(
    batches: Iterable[pa.RecordBatch],
    directory: Path,
    unique: str,
    archived: Mapping[Queue, int] = MappingProxyType({}),
) -> Iterator[dict[str, Any]]:
    """Write the messages of one task into staged files; yield a row of `STAGED_SCHEMA` for each.

    A message whose offset is below that in `archived` is skipped.

    Args:
        batches: the messages, with all columns of the source; of each queue in order of offsets.
        directory: the staging directory.
        unique: text that no other task, and no other attempt of this task, has.
        archived: offset after the last archived message of each queue.
    """
    directory.mkdir(parents=True, exist_ok=True)
    open_files: dict[_Key, _OpenFile] = {}
    count = 0
    for batch in batches:
        for key, rows in _divided(batch):
            topic, _, broker_name, queue_id = key
            part = _from_offset(rows, archived.get((topic, broker_name, queue_id), 0))
            if not part.num_rows:
                continue
            file = open_files.pop(key, None)
            if file is None:
                if len(open_files) >= _OPEN_FILES_MAX:
                    yield _closed(open_files.pop(next(iter(open_files))), directory)
                file = _opened(key, part.schema, directory, f"{unique}-{count}.parquet")
                count += 1
            open_files[key] = file  # at the end: the one written most recently
            file.writer.write_batch(part)
            first, last = (pc.min_max(part.column("queueOffset"))[name].as_py() for name in _ENDS)
            row = file.row
            row["start"] = first if row["start"] is None else min(row["start"], first)
            if last >= row["until"]:
                row["until"], row["lastStoredMs"] = last + 1, _stored_ms(part, last)
            row["rows"] += part.num_rows
    for file in open_files.values():
        yield _closed(file, directory)


_ENDS: Final = ("min", "max")


def _from_offset(rows: pa.RecordBatch, start: int) -> pa.RecordBatch:
    return rows.filter(pc.greater_equal(rows.column("queueOffset"), start)) if start else rows


def _stored_ms(rows: pa.RecordBatch, offset: int) -> int | None:
    """Return the store time of the message at the offset, which is one of the rows."""
    at = pc.index(rows.column("queueOffset"), offset).as_py()
    stored_us = rows.column("storeTimestamp")[at].cast(pa.int64()).as_py()
    return None if stored_us is None else int(stored_us) // 1000


def _divided(batch: pa.RecordBatch) -> Iterator[tuple[_Key, pa.RecordBatch]]:
    """Yield (topic, hour, broker, queue id) and the rows of each; without the column `topic`."""
    hours = pc.strftime(batch.column("storeTimestamp"), "%Y%m%d%H").fill_null(_NULL_HOUR)
    keys = pa.RecordBatch.from_arrays(
        [batch.column("topic"), hours, batch.column("brokerName"), batch.column("queueId")],
        ["topic", "hour", "brokerName", "queueId"],
    )
    rest = batch.drop_columns(["topic"])
    distinct = pa.Table.from_batches([keys]).group_by(keys.schema.names).aggregate([])
    if distinct.num_rows == 1:
        yield _key(distinct.to_pylist()[0]), rest
        return
    for row in distinct.to_pylist():
        masks = [pc.equal(keys.column(name), pa.scalar(value)) for name, value in row.items()]
        mask = masks[0]
        for one in masks[1:]:
            mask = pc.and_(mask, one)
        yield _key(row), rest.filter(mask)


def _key(row: Mapping[str, Any]) -> _Key:
    return row["topic"], row["hour"], row["brokerName"], row["queueId"]


def _opened(key: _Key, schema: pa.Schema, directory: Path, name: str) -> _OpenFile:
    topic, hour, broker_name, queue_id = key
    writer = pq.ParquetWriter(directory / name, schema, compression="zstd")
    row = {
        "staged": name,
        "topic": topic,
        "hour": hour,
        "brokerName": broker_name,
        "queueId": queue_id,
        "start": None,
        "until": 0,
        "rows": 0,
        "bytes": 0,
        "lastStoredMs": None,
    }
    return _OpenFile(writer, row)


def _closed(file: _OpenFile, directory: Path) -> dict[str, Any]:
    file.writer.close()
    path = directory / str(file.row["staged"])
    _sync_file(path)
    return {**file.row, "bytes": path.stat().st_size}


def _move(source: Path, target: Path) -> None:
    """Move a file; one that is in place already was moved before a crash."""
    if not source.exists() and target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    source.replace(target)
    _sync_directory(target.parent)


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _write_durably(path: Path, text: str) -> None:
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
