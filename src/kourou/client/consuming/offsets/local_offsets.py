"""Offsets that a broadcasting consumer keeps in a file of its own.

    <directory>/<client id>/<group>/offsets.json        and .bak, the one before

    {
        "offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:7}
    }

Java's clients read the same file, and write it. A consumer that starts again under the same client
id goes on there; so the id must not change, and no other process may use it at the same time.

Source: LocalFileOffsetStore.java.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from kourou.client.consuming.consumer_config import PushConsumerConfig
from kourou.client.consuming.offsets.offset_store import Offsets, OffsetsInMemory, RemoteOffsets
from kourou.client.instance import ClientInstance
from kourou.disk import Disk, OsDisk
from kourou.errors import CorruptRecordError, StoreLockedError, UsageError
from kourou.model.group import MessageModel
from kourou.model.queue import MessageQueue
from kourou.protocol.bodies import decode_reset_offsets
from kourou.protocol.fastjson import dumps
from kourou.remoting.runtime import Offload
from kourou.store.state.config_file import ConfigFile

log = logging.getLogger(__name__)

DIRECTORY: Final = ".rocketmq_offsets"
"""In the home directory, unless the config names another."""


class LocalOffsets(OffsetsInMemory):
    """Offsets of the queues that this consumer holds, and the file that keeps them.

    What is updated here is in memory until `persist`. A crash in between repeats deliveries.

    Args:
        disk: the directory of all clients' offsets.
        client_id: this client's.
        group: the consumer group.
        offload: runs what waits for the disk.
    """

    is_remote = False

    def __init__(self, disk: Disk, client_id: str, group: str, offload: Offload) -> None:
        super().__init__()
        self._disk = disk
        self._directory = f"{client_id}/{group}"
        self._offload = offload
        self._file = ConfigFile(disk, f"{self._directory}/offsets.json", decode_reset_offsets)
        self._kept: dict[MessageQueue, int] = {}
        self._saved = b""
        self._unlock: Callable[[], None] | None = None
        self._is_closed = False
        self._is_failing = False
        self._saving = asyncio.Lock()  # several queues are released at a time; the file is one

    async def open(self) -> None:
        """Read the file, and keep others from using it until `close`. Java's clients do not look.

        Raises:
            UsageError: another consumer has it, or it cannot be read or written.
        """
        self._is_closed = False
        try:
            await self._offload(self._open)
        except StoreLockedError as error:
            raise UsageError(
                f"{error}: another consumer broadcasts with this client id; give each its own "
                "instance_name"
            ) from None
        except (OSError, CorruptRecordError) as error:
            raise UsageError(f"offsets in {self._disk.root}/{self._directory}: {error}") from error

    def close(self) -> None:
        """Let others use the file. Nothing is written."""
        self._is_closed = True
        unlock, self._unlock = self._unlock, None
        if unlock is not None:
            unlock()

    async def fetch(self, queue: MessageQueue, *, zero_if_new: bool = False) -> int | None:
        """Return the queue offset that the file has; None if it has none.

        Args:
            queue: the queue.
            zero_if_new: without effect: no broker is asked.
        """
        del zero_if_new
        return self._kept.get(queue)

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        """Write the offsets of these queues, beside those that the file has of others.

        Returns when they are on the disk. A failure is not raised, but logged once until it works
        again: the next time heals it, or deliveries are repeated.
        """
        for queue in queues:
            offset = self._offsets.get(queue)
            if offset is not None:
                self._kept[queue] = offset
        if not self._kept:
            return
        try:
            async with self._saving:
                # Taken now: who waited here meanwhile writes what others changed, too.
                data = dumps({"offsetTable": dict(sorted(self._kept.items()))}, pretty=True)
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
            # A name is durable with the directory that holds it.
            self._disk.sync_directory(self._directory.rpartition("/")[0])
            self._disk.sync_directory("")
        self._unlock = self._disk.lock(f"{self._directory}/lock")
        data = self._file.load()
        self._kept = {} if data is None else decode_reset_offsets(data)
        if self._is_closed:  # whoever waited for this was cancelled
            self.close()


def make_offsets(
    instance: ClientInstance, group: str, config: PushConsumerConfig, disk: Disk | None = None
) -> Offsets:
    """Return where a consumer's offsets are kept: by brokers or, if it broadcasts, in a file.

    Args:
        instance: the client.
        group: the consumer group.
        config: its message model and directory.
        disk: in place of the directory.
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
