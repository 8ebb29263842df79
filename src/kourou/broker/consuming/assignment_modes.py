"""Modes in which groups read topics, pull or pop, as set by administrators (401).

They are saved in `config/messageRequestMode.json`, in Java's format: `messageRequestModeMap`, topic
-> group -> the request that set the mode. As in Java, a mode outlives its topic and group.

Source: MessageRequestModeManager.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from kourou.broker.change_log import ChangeLog
from kourou.broker.config_saver import ConfigSaver, SavedFile, TextParts
from kourou.errors import SystemBusyError
from kourou.protocol.codes import ResponseCode
from kourou.protocol.queue_assignment import (
    MessageRequestModes,
    SetMessageRequestMode,
    decode_message_request_modes,
    encode_message_request_modes,
)
from kourou.remoting.runtime import Offload

log = logging.getLogger(__name__)

FILE_NAME: Final = "config/messageRequestMode.json"
MODES_MAX: Final = 100_000
"""Limit on pairs of topic and group with a mode; a mode is never removed."""


class RequestModes:
    """All modes that were set. In memory; `persist` makes changes durable.

    Attributes:
        change_log: copies the changes to replicas; None without a controller, and on a slave.
    """

    def __init__(self, file: SavedFile, offload: Offload) -> None:
        """Load the file.

        Args:
            file: read now; written by `persist`.
            offload: runs the writes off the event loop.

        Raises:
            CorruptRecordError: neither the file nor its backup parses.
        """
        self.change_log: ChangeLog | None = None
        self._saver = ConfigSaver(file, self._take, offload)
        text = file.load()
        table = MessageRequestModes() if text is None else decode_message_request_modes(text)
        self._modes = {
            topic: dict(groups) for topic, groups in table.message_request_mode_map.items()
        }

    def get(self, topic: str, group: str) -> SetMessageRequestMode | None:
        """Return the mode in which the group reads the topic; None if it was not set."""
        return self._modes.get(topic, {}).get(group)

    def put(self, mode: SetMessageRequestMode) -> None:
        """Set the mode in which a group reads a topic.

        Raises:
            SystemBusyError: `MODES_MAX` pairs are set.
        """
        of_topic = self._modes.get(mode.topic, {})
        is_new = mode.consumer_group not in of_topic
        if is_new and sum(map(len, self._modes.values())) >= MODES_MAX:
            raise SystemBusyError(
                ResponseCode.SYSTEM_BUSY,
                f"{MODES_MAX} modes are set, which is the limit: only these can be changed",
            )
        if of_topic.get(mode.consumer_group) == mode:
            return
        self._modes.setdefault(mode.topic, {})[mode.consumer_group] = mode
        self._saver.changed()
        if self.change_log is not None:
            self.change_log.note_mode(mode.topic, mode.consumer_group)
        log.info(
            "request_mode.set topic=%s group=%s mode=%s share=%d",
            mode.topic,
            mode.consumer_group,
            mode.mode,
            mode.pop_share_queue_num,
        )

    def body(self) -> bytes:
        """Return the body of the answer to 402."""
        return encode_message_request_modes(MessageRequestModes(self._modes))

    async def persist(self) -> None:
        """Write the file if something changed; when this returns, all changes before are durable.

        With a `change_log` the in-sync replicas have them too.

        Raises:
            OSError: the file could not be written; it is as it was.
            ChangeNotCopiedError: not all replicas have the changes; an OSError as well.
        """
        await self._saver.save()
        if self.change_log is not None:
            await self.change_log.flush()

    def _take(self) -> TextParts:
        return (msgspec.json.format(self.body(), indent=2),)
