"""Clock for the ages of messages, which remembers jumps of the wall clock across restarts.

A starting broker has only the store time of the last message to compare the wall clock with. If the
wall clock jumped before that message was stored, both are wrong. Therefore, while a jump is not
followed (`kourou.clock.SettledClock`), the time without the jump is saved every minute to
`config/kourou-clock.json` as `{"ageClockMs": ...}`; 0 means that there is no such jump. The next
start continues from the saved time.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from kourou.broker.config_saver import ConfigSaver, SavedFile
from kourou.broker.live_config import LiveConfig
from kourou.clock import Clock, SettledClock
from kourou.errors import CorruptRecordError
from kourou.remoting.runtime import Offload
from kourou.remoting.steady_time import steady_ms
from kourou.store.message_store import MessageStore

log = logging.getLogger(__name__)

FILE_NAME: Final = "config/kourou-clock.json"
SAVE_INTERVAL_MS: Final = 60_000
_MINUTE_MS: Final = 60_000


class _Text(msgspec.Struct):
    ageClockMs: int  # noqa: N815 - the naming style of the other files' keys


def parse_age_clock(text: bytes) -> int:
    """Return the saved time in epoch milliseconds, 0 for none.

    Raises:
        ValueError: the text has another form.
    """
    return msgspec.json.decode(text, type=_Text).ageClockMs


class AgeClock:
    """The age clock of one broker."""

    def __init__(
        self,
        live: LiveConfig,
        store: MessageStore,
        clock: Clock,
        file: SavedFile,
        offload: Offload,
    ) -> None:
        """Start from the saved time, or else from the store time of the last message.

        If the wall clock is behind that time, start from the wall clock. A corrupt file counts as
        missing.

        Args:
            live: source of the time after which a jump is followed.
            store: source of the store time of the last message.
            clock: the wall clock.
            file: read now; written by `check_wall_clock`.
            offload: runs the writes off the event loop.
        """
        self._saved_ms = self._saved_at_ms = 0
        try:
            text = file.load()
            self._saved_ms = 0 if text is None else parse_age_clock(text)
        except CorruptRecordError as error:
            log.warning("age_clock.forgotten reason=%s", error)
        self._saver = ConfigSaver(file, lambda: (self._text(),), offload)
        self._settled = SettledClock(
            clock,
            steady_ms,
            lambda: live.current.store.retention.clock_settle_minutes * _MINUTE_MS,
            self._saved_ms or store.writer.last_store_at_ms,
        )

    def now_ms(self) -> int:
        """Return the time for ages of messages, in epoch milliseconds."""
        return self._settled.now_ms()

    async def check_wall_clock(self) -> None:
        """Check the wall clock for a jump, and save the time if necessary.

        Raises:
            OSError: the file could not be written.
        """
        now_ms = self.now_ms()
        wanted_ms = 0 if self._settled.follows_wall else now_ms
        is_old = steady_ms() - self._saved_at_ms >= SAVE_INTERVAL_MS
        if (wanted_ms == 0) != (self._saved_ms == 0) or (wanted_ms and is_old):
            self._saved_ms, self._saved_at_ms = wanted_ms, steady_ms()
            self._saver.changed()
        await self._saver.save()

    def _text(self) -> bytes:
        return msgspec.json.encode(_Text(self._saved_ms))
