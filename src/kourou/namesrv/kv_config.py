"""Key-value configuration: text values by namespace and key, persisted in one file.

    {"configTable":{"ns":{"k":"v"}}}

The namespace ORDER_TOPIC_CONFIG holds, by ordered topic, the queues that producers use, as
`broker-a:4;broker-b:4`. The name server does not interpret other namespaces.

A change takes effect in memory at once. `persist` makes it durable, and a change is answered only
after that. Without a file the configuration is lost when the process ends.

Source: KVConfigManager.java, KVConfigSerializeWrapper.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final, Protocol

from kourou.errors import RemoteSystemError
from kourou.protocol.codes import ResponseCode
from kourou.protocol.fastjson import dumps, loads
from kourou.protocol.json_values import as_object, get_object, get_text_map
from kourou.remoting.runtime import Offload

log = logging.getLogger(__name__)

FILE_NAME: Final = "namesrv/kvConfig.json"

ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"
"""The namespace of ordered topics."""

_ENTRY_BYTES: Final = 200
"""Memory that a key or a namespace takes beside its text; it bounds the number of short keys."""


class SavedFile(Protocol):
    """A file that is replaced as a whole, see `kourou.store.state.config_file.ConfigFile`."""

    def load(self) -> bytes | None: ...

    def save(self, data: bytes) -> None: ...


class KvConfig:
    """All keys of all namespaces.

    Args:
        file: read by the constructor, written by `persist`; None means memory only.
        offload: runs the writes off the event loop.
        bytes_max: approximate limit of the memory of all namespaces, keys and values: their UTF-8
            bytes, plus 200 for each key and namespace. `put` refuses a change beyond it.

    Raises:
        CorruptRecordError: neither the file nor its backup parses.
    """

    def __init__(
        self, file: SavedFile | None, offload: Offload, *, bytes_max: int = 16 * 1024**2
    ) -> None:
        self._file = file
        self._offload = offload
        self._bytes_max = bytes_max
        self._lock = asyncio.Lock()
        self._is_changed = False
        text = None if file is None else file.load()
        self._table: dict[str, dict[str, str]] = {} if text is None else parse_kv_config(text)
        self._bytes = sum(map(_size, self._table)) + sum(
            _size(key, value) for values in self._table.values() for key, value in values.items()
        )

    def get(self, namespace: str, key: str) -> str | None:
        """Return the value, or None if the key does not exist."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """Return the keys and values of a namespace, or None if it does not exist."""
        return self._table.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value.

        Raises:
            RemoteSystemError: the change would exceed `bytes_max`; nothing is changed.
        """
        before = self.get(namespace, key)
        if before == value:
            return
        size = self._bytes + _size(key, value)
        if before is not None:
            size -= _size(key, before)
        if namespace not in self._table:
            size += _size(namespace)
        if size > self._bytes_max:
            raise RemoteSystemError(
                ResponseCode.SYSTEM_ERROR,
                f"kv config would take {size} bytes, the limit is {self._bytes_max}: delete keys",
            )
        self._table.setdefault(namespace, {})[key] = value
        self._bytes = size
        self._is_changed = True

    def delete(self, namespace: str, key: str) -> None:
        """Remove a key; ignore an unknown one. An empty namespace stays, as in Java."""
        value = self._table.get(namespace, {}).pop(key, None)
        if value is not None:
            self._bytes -= _size(key, value)
            self._is_changed = True

    async def persist(self) -> None:
        """Write the file if there are changes; on return, all changes made before are durable.

        Changes made during a write share the next write.

        Raises:
            OSError: the write failed; the file is unchanged, and the next call tries again.
        """
        if self._file is None:
            return
        async with self._lock:
            if not self._is_changed:
                return
            self._is_changed = False
            try:
                table = {namespace: dict(values) for namespace, values in self._table.items()}
                await self._offload(_save, self._file, table)
            except BaseException:
                self._is_changed = True
                raise


def parse_kv_config(text: bytes) -> dict[str, dict[str, str]]:
    """Return namespace -> key -> value, decoded from the text of the file.

    Raises:
        MalformedBodyError: the text does not have the form above.
    """
    table = get_object(as_object(loads(text), "kv config"), "configTable")
    return {namespace: get_text_map(table, namespace) for namespace in table}


def _save(file: SavedFile, table: Mapping[str, Mapping[str, str]]) -> None:
    file.save(dumps({"configTable": table}))


def _size(*texts: str) -> int:
    """Return the approximate memory of a namespace, or of a key with its value, in bytes."""
    return _ENTRY_BYTES + sum(len(text.encode()) for text in texts)
