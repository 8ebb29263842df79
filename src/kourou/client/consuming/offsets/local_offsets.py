"""Offsets of a broadcasting consumer, stored in a local file.

    <directory>/<client id>/<group>/offsets.json        and .bak, the previous version

    {
        "offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:7}
    }

Java's clients read and write the same file. A consumer that restarts with the same client id
continues at these offsets; so the id must stay the same, and no other process may use it at the
same time.

Source: LocalFileOffsetStore.java.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from kourou.client.calls_consume import CommittedOffset
from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.offsets.offset_store import Offsets, OffsetsInMemory, RemoteOffsets
from kourou.client.instance import ClientInstance
from kourou.disk import Disk, OsDisk
from kourou.errors import CorruptRecordError, StoreLockedError, UsageError
from kourou.model.group import MessageModel
from kourou.model.queue import MessageQueue
from kourou.protocol.fastjson import dumps
from kourou.protocol.offsets import decode_reset_offsets
from kourou.remoting.runtime import Offload
from kourou.store.state.config_file import ConfigFile

log = logging.getLogger(__name__)

DIRECTORY: Final = ".rocketmq_offsets"
"""Directory in the home directory, unless the config names another."""


class LocalOffsets(OffsetsInMemory):
    """Offsets of the queues that this consumer holds, in memory and in a file.

    Updates stay in memory until `persist`. After a crash in between, messages are delivered again.

    Args:
        disk: the directory with the offsets of all clients.
        client_id: this client's id.
        group: the consumer group.
        offload: runs disk operations off the event loop.
    """

    is_remote = False

    def __init__(self, disk: Disk, client_id: str, group: str, offload: Offload) -> None:
        super().__init__()
        self._disk = disk
        self._directory = f"{client_id}/{group}"
        self._offload = offload
        self._file = ConfigFile(disk, f"{self._directory}/offsets.json", decode_reset_offsets)
        self._persisted: dict[MessageQueue, int] = {}
        self._saved = b""
        self._unlock: Callable[[], None] | None = None
        self._is_closed = False
        self._is_failing = False
        self._saving = asyncio.Lock()  # queues are released concurrently; they share one file

    async def open(self) -> None:
        """Read the file and lock it against other consumers until `close`.

        Java's clients ignore the lock.

        Raises:
            UsageError: another consumer has locked it, or it cannot be read or written.
        """
        self._is_closed = False
        try:
            await self._offload(self._open)
        except StoreLockedError as error:
            raise UsageError(
                f"{error}: another broadcasting consumer uses this client id; set another "
                "instance_name"
            ) from None
        except (OSError, CorruptRecordError) as error:
            raise UsageError(f"offsets in {self._disk.root}/{self._directory}: {error}") from error

    def close(self) -> None:
        """Unlock the file. Nothing is written."""
        self._is_closed = True
        unlock, self._unlock = self._unlock, None
        if unlock is not None:
            unlock()

    async def fetch(self, queue: MessageQueue, *, zero_if_new: bool = False) -> CommittedOffset:
        """Return the queue offset in the file; None if it has none.

        Args:
            queue: the queue.
            zero_if_new: ignored: no broker is involved.
        """
        del zero_if_new
        return CommittedOffset(self._persisted.get(queue), None)

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        """Write the offsets of these queues; the file keeps those of other queues.

        On success the offsets are durable on return. A failure is not raised, but logged as a
        warning once until a write succeeds. A later call writes the offsets; after a crash before
        that, messages are delivered again.
        """
        for queue in queues:
            offset = self._offsets.get(queue)
            if offset is not None:
                self._persisted[queue] = offset
        if not self._persisted:
            return
        try:
            async with self._saving:
                # Encoded under the lock, so that changes made while waiting are included.
                data = dumps({"offsetTable": dict(sorted(self._persisted.items()))}, pretty=True)
                if data != self._saved:
                    await self._offload(self._file.save, data)
                    self._saved = data
        except OSError as error:
            level = logging.DEBUG if self._is_failing else logging.WARNING
            self._is_failing = True
            log.log(level, "offset_file.not_saved name=%s reason=%s", self._file.name, error)
        else:
            self._is_failing = False

    def _open(self) -> None:
        if not self._disk.exists(self._directory):
            self._disk.make_directory(self._directory)
            # A directory entry is durable once its parent directory is synced.
            self._disk.sync_directory(self._directory.rpartition("/")[0])
            self._disk.sync_directory("")
        self._unlock = self._disk.lock(f"{self._directory}/lock")
        data = self._file.load()
        self._persisted = {} if data is None else decode_reset_offsets(data)
        if self._is_closed:  # `open` was cancelled, and the consumer closed meanwhile
            self.close()


def create_offsets(
    instance: ClientInstance, group: str, config: PushConsumerConfig, disk: Disk | None = None
) -> Offsets:
    """Return the offset store of a consumer: at brokers or, if it broadcasts, in a local file.

    Args:
        instance: the client.
        group: the consumer group.
        config: its message model and directory.
        disk: replaces the configured directory.
    """
    if config.message_model is not MessageModel.BROADCASTING:
        return RemoteOffsets(instance, group, config.request_timeout_ms)
    directory = config.local_offset_directory or Path.home() / DIRECTORY
    return LocalOffsets(
        OsDisk(directory) if disk is None else disk,
        instance.client_id,
        group,
        instance.runtime.offload,
    )
