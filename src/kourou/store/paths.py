"""Names of the store's files and directories, below its root.

Source: StorePathConfigHelper.java, UtilAll.offset2FileName, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from typing import Final

from kourou.decimals import decimal_or, is_decimal

COMMITLOG: Final = "commitlog"
CONSUMEQUEUE: Final = "consumequeue"
BATCH_CONSUMEQUEUE: Final = "batchconsumequeue"
INDEX: Final = "index"
CONSUMEQUEUE_EXT: Final = "consumequeue_ext"
CONFIG: Final = "config"
TOPICS: Final = "config/topics.json"
CHECKPOINT: Final = "checkpoint"
ABORT: Final = "abort"
"""Exists while a broker runs; if found at start, the last broker did not stop cleanly."""
ABORT_BACKUP: Final = "abort.bak"
"""The name to which Java renames `abort` in a clean stop."""
EPOCHS: Final = "epochFileCheckpoint"
ACK_MARK: Final = "config/kourou-acks.json"
"""What a replica in controller mode has acknowledged."""
LOCK: Final = "lock"
STORE_STATE: Final = "config/kourou-store.json"
TLS: Final = "tls"
"""Directory of the self-signed certificate that `kourou serve` generates, and of its key."""

_DIGITS: Final = 20


def file_name(offset: int) -> str:
    """Return the name of the file that begins at byte `offset` of its log."""
    return f"{offset:020d}"


def parse_file_name(name: str) -> int | None:
    """Return the offset in a file's name; None if the name is not 20 digits."""
    return decimal_or(name, None, _DIGITS) if len(name) == _DIGITS else None


def topic_directory(topic: str) -> str:
    """Return the directory of the topic's consume queues."""
    return f"{CONSUMEQUEUE}/{topic}"


def queue_directory(topic: str, queue_id: int) -> str:
    """Return the directory of one consume queue."""
    return f"{CONSUMEQUEUE}/{topic}/{queue_id}"


def batch_queue_directory(topic: str, queue_id: int) -> str:
    """Return the directory of one batch consume queue."""
    return f"{BATCH_CONSUMEQUEUE}/{topic}/{queue_id}"


def extension_directory(topic: str, queue_id: int) -> str:
    """Return the directory of one consume queue's extension units."""
    return f"{CONSUMEQUEUE_EXT}/{topic}/{queue_id}"


def is_safe_topic(topic: str) -> bool:
    """Tell whether the topic can be a directory name, inside its parent directory."""
    return topic not in ("", ".", "..") and "/" not in topic and "\0" not in topic


def is_queue_id(name: str) -> bool:
    """Tell whether a directory's name is a queue id."""
    return is_decimal(name) and name == str(int(name))
