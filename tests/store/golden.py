"""Recorded stores of a Java broker, unpacked onto a simulated disk, with Java's view of them."""

from __future__ import annotations

import gzip
import json
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kourou.protocol.record.encode import RecordDraft
from kourou.protocol.record.read import read_record
from kourou.store.config import StoreConfig
from kourou.testing.disk import SimDisk
from tests.store.rig import CONFIG

FOLDER = Path(__file__).parent.parent / "golden" / "store"
NAMES = ("clean", "killed", "torn", "expired", "lmq")


@dataclass(frozen=True)
class Golden:
    """A store directory written by Java, and the manifest of it by Java's store library."""

    disk: SimDisk
    manifest: dict[str, Any]
    config: StoreConfig
    files: dict[str, bytes]

    def log_bytes(self) -> bytes:
        """Return the commit log, from its first file's start to the end of its records."""
        log = self.manifest["commit_log"]
        data = b"".join(self.files[name] for name in sorted(self.files) if "commitlog/" in name)
        return data[: log["max_offset"] - log["min_offset"]]


def load(name: str) -> Golden:
    """Return a fresh copy of a recorded store."""
    manifest = json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))
    config = replace(
        CONFIG,
        commitlog_segment_bytes=manifest["config"]["mappedFileSizeCommitLog"],
        consumequeue_file_bytes=manifest["config"]["mappedFileSizeConsumeQueue"],
        index_slots=manifest["config"]["maxHashSlotNum"],
        index_entries=manifest["config"]["maxIndexNum"],
        batch_queue_file_bytes=manifest["config"]["mapperFileSizeBatchConsumeQueue"],
        append_property_crc=False,
    )
    with zipfile.ZipFile(FOLDER / f"{name}.zip") as archive:
        files = {file: archive.read(file) for file in archive.namelist()}
    disk = SimDisk()
    for file, data in files.items():
        if file == "config/timercheck":
            continue  # its wheel and timer log are in a separate archive
        disk.make_directory(file.rpartition("/")[0])
        disk.truncate(file, len(data))
        disk.write(file, 0, [data.rstrip(b"\0")])
    return Golden(disk, manifest, config, files)


def draft_of(record: bytes) -> RecordDraft:
    """Return the draft of a stored record, as a broker passes it to the store."""
    header = read_record(record, 0, check_crc=True)
    start = header.properties_start
    return RecordDraft(
        topic=header.topic.encode(),
        queue_id=header.queue_id,
        flag=header.flag,
        sys_flag=header.sys_flag,
        born_at_ms=header.born_at_ms,
        born_host=header.born_host,
        store_host=header.store_host,
        reconsume_times=header.reconsume_times,
        prepared_transaction_offset=header.prepared_transaction_offset,
        body=record[header.body_start : header.body_start + header.body_size],
        properties=record[start : start + header.properties_size],
    )
