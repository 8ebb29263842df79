"""Reads the topic names in a store's topic table, without a broker."""

from __future__ import annotations

from kourou.disk import Disk
from kourou.errors import KourouError
from kourou.protocol import fastjson
from kourou.store.paths import TOPICS
from kourou.store.state.config_file import BARE_KEYS_BYTES_MAX, ConfigFile


def named_topics(disk: Disk) -> frozenset[str] | None:
    """Return the names in `config/topics.json`; None if it is missing or cannot be parsed.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        data = ConfigFile(disk, TOPICS, _parse).load()
    except KourouError:
        return None
    table = _parse(data) if data is not None else None
    topics = table.get("topicConfigTable") if isinstance(table, dict) else None
    return frozenset(map(str, topics)) if isinstance(topics, dict) else None


def _parse(text: bytes) -> object:
    return fastjson.loads(text, bare_keys_bytes_max=BARE_KEYS_BYTES_MAX)
