"""The clock by which messages are old, which remembers over restarts that the wall clock jumped.

A broker that starts knows the time of the last message only. If the wall clock had jumped before
that, both are wrong. So while a jump is not followed (`kourou.clock.SettledClock`), the time
without it is saved to `config/kourou-clock.json` every minute: `{"ageClockMs": ...}`, 0 where there
is none. The next start begins there.
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
    ageClockMs: int  # noqa: N815 - as keys are in the other files


def parse_age_clock(text: bytes) -> int:
    """Return the time that was saved.

    Raises:
        ValueError: the text is not of this form.
    """
    return msgspec.json.decode(text, type=_Text).ageClockMs


class AgeClock:
    """The clock of one broker; see above."""

    def __init__(
        self,
        live: LiveConfig,
        store: MessageStore,
        clock: Clock,
        file: SavedFile,
        offload: Offload,
    ) -> None:
        """Begin where the file says, else with the last message, if the wall clock is ahead.

        Args:
            live: how long a jump must last.
            store: holds the messages.
            clock: the wall clock.
            file: read now; written by `watch`.
            offload: takes the writes off the loop.
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
            lambda: live.now.store.retention.clock_settle_minutes * _MINUTE_MS,
            self._saved_ms or store.last_store_at_ms,
        )

    def now_ms(self) -> int:
        """Return epoch milliseconds."""
        return self._settled.now_ms()

    async def watch(self) -> None:
        """Look whether the wall clock has jumped, and save what is to be saved.

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
