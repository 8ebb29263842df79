"""Clock for the ages of messages, which remembers jumps of the wall clock across restarts.

A starting broker cannot trust the wall clock: it may have jumped while the broker was down, or
before the last message was stored. So `config/kourou-clock.json` records the clock:

    boot         id of the time since the machine started; empty if unknown
    zeroMs       zero of the steady clock in that time, in epoch ms by this clock
    ageClockMs   this clock, saved every minute while a jump of the wall clock is not followed
                 (`kourou.clock.SettledClock`); 0 if there is no such jump

If the machine has not started again, the clock continues by the steady clock, however the broker
ended. Otherwise it continues from `ageClockMs` or, if that is 0, from the store time of the last
message.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from kourou.broker.config_saver import ConfigSaver, SavedFile
from kourou.broker.live_config import LiveConfig
from kourou.clock import STEP_MS, Clock, SettledClock
from kourou.errors import CorruptRecordError
from kourou.remoting.runtime import Offload
from kourou.remoting.steady_time import steady_ms
from kourou.store.message_store import MessageStore

log = logging.getLogger(__name__)

FILE_NAME: Final = "config/kourou-clock.json"
SAVE_INTERVAL_MS: Final = 60_000
_MINUTE_MS: Final = 60_000


class ClockFile(msgspec.Struct, frozen=True, rename="camel"):
    """The contents of the file; see the module's description."""

    age_clock_ms: int = 0
    boot: str = ""
    zero_ms: int = 0


def parse_age_clock(text: bytes) -> ClockFile:
    """Decode the file.

    Raises:
        ValueError: the text has another form.
    """
    return msgspec.json.decode(text, type=ClockFile)


class AgeClock:
    """The age clock of one broker."""

    def __init__(
        self,
        live: LiveConfig,
        store: MessageStore,
        clock: Clock,
        file: SavedFile,
        offload: Offload,
        boot_id: str | None = None,
    ) -> None:
        """Start from the file, or else from the store time of the last message.

        If the wall clock is behind that time, start from the wall clock. A corrupt file counts as
        missing. The file is written at once if it is of another start of the machine: else a kill
        within seconds would leave none.

        Args:
            live: source of the time after which a jump is followed.
            store: source of the store time of the last message.
            clock: the wall clock.
            file: read and perhaps written now; written by `check_wall_clock`.
            offload: runs the writes off the event loop.
            boot_id: the time since the machine started, in which the steady clock continues from
                one process to the next; None if unknown.
        """
        self._boot_id = boot_id or ""
        self._saved = ClockFile()
        self._saved_at_ms = 0
        try:
            text = file.load()
            self._saved = self._saved if text is None else parse_age_clock(text)
        except CorruptRecordError as error:
            log.warning("age_clock.forgotten reason=%s", error)
        known_ms = self._saved.age_clock_ms or store.writer.last_store_at_ms
        if self._boot_id and self._saved.boot == self._boot_id:
            known_ms = self._saved.zero_ms + steady_ms()
        self._saver = ConfigSaver(file, lambda: (msgspec.json.encode(self._saved),), offload)
        self._settled = SettledClock(
            clock,
            steady_ms,
            lambda: live.current.store.retention.clock_settle_minutes * _MINUTE_MS,
            known_ms,
        )
        if self._note_change():
            try:
                file.save(msgspec.json.encode(self._saved))
            except OSError:  # `check_wall_clock` tries again, and its failure is reported
                self._saver.changed()

    def now_ms(self) -> int:
        """Return the time for ages of messages, in epoch milliseconds."""
        return self._settled.now_ms()

    async def check_wall_clock(self) -> None:
        """Check the wall clock for a jump, and save the time if necessary.

        Raises:
            OSError: the file could not be written.
        """
        if self._note_change():
            self._saver.changed()
        await self._saver.save()

    def _note_change(self) -> bool:
        """Update the contents of the file; return whether they changed enough to be written."""
        now_ms, before = self.now_ms(), self._saved
        zero_ms = now_ms - steady_ms() if self._boot_id else 0
        age_clock_ms = 0 if self._settled.follows_wall else now_ms
        is_old = steady_ms() - self._saved_at_ms >= SAVE_INTERVAL_MS
        if (
            (age_clock_ms == 0) == (before.age_clock_ms == 0)
            and not (age_clock_ms and is_old)
            and before.boot == self._boot_id
            and abs(zero_ms - before.zero_ms) <= STEP_MS
        ):
            return False
        self._saved = ClockFile(age_clock_ms, self._boot_id, zero_ms)
        self._saved_at_ms = steady_ms()
        return True
