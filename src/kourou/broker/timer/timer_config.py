"""The options of messages that are delivered at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kourou.documented import documented
from kourou.errors import ConfigError
from kourou.store.timer.layouts import BLANK, UNIT_BYTES
from kourou.store.timer.placing import ROLL_WINDOW_SLOTS, ROLL_WINDOW_SLOTS_MAX
from kourou.store.timer.timer_log import LOG_FILE_BYTES

_YEAR_S: Final = 366 * 86_400
UNLIMITED: Final = 2**31 - 1
"""Of `timer_congest_num_each_slot`: nobody is refused."""


@documented
@dataclass(frozen=True, kw_only=True)
class TimerConfig:
    """How a broker serves them. Fields marked `live` can be changed while it runs.

    Raises:
        ConfigError: a value is out of its range.
    """

    timer_wheel_enable: bool = True
    """Whether messages with a time of their own (TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS)
    are served. If not, sends of them are refused, and those that wait go on waiting."""
    timer_max_delay_sec: int = field(default=10 * _YEAR_S, metadata={"live": True})
    """The longest delay that is taken, in seconds. Java's default is three days; here a longer one
    rolls on. The limit only catches times in microseconds."""
    timer_roll_window_slot: int = ROLL_WINDOW_SLOTS
    """A message that waits for so many seconds or more is stored again on the way, so that it never
    is among those that expire; with a short `fileReservedTime`, after two thirds of that."""
    timer_flush_interval_ms: int = 1_000
    """How often the timer's progress is made durable, in ms; after a kill -9 what came since is
    read again from topic and log."""
    timer_log_file_bytes: int = field(
        default=LOG_FILE_BYTES, metadata={"key": "mappedFileSizeTimerLog"}
    )
    """Bytes of one file of a new timer log, which is sparse: 52 bytes a message. A log that is
    there keeps its size."""
    timer_congest_num_each_slot: int = field(default=UNLIMITED, metadata={"live": True})
    """Messages due in one second above which sends for it are refused more and more often, and
    always above twice as many."""
    timer_in_flight_max: int = 2_048
    """Messages that are being delivered at once. RocketMQ has no such key."""
    recall_message_enable: bool = field(default=True, metadata={"live": True})
    """Whether producers may take such messages back (request 370). Java's default is false."""
    allow_recall_when_broker_not_writeable: bool = field(default=True, metadata={"live": True})
    """Whether they may also while `brokerPermission` forbids sends."""
    append_topic_for_timer_delete_key: bool = field(default=False, metadata={"live": True})
    """Whether what takes a message back names its topic beside its unique id, as Java before 5.4
    needs it. Here both are understood."""

    def __post_init__(self) -> None:
        for name, least, most in (
            ("timer_max_delay_sec", 1, 100 * _YEAR_S),
            ("timer_roll_window_slot", 2, ROLL_WINDOW_SLOTS_MAX),
            ("timer_flush_interval_ms", 10, 60_000),
            ("timer_log_file_bytes", UNIT_BYTES + BLANK.size, 2**31 - 1),
            ("timer_congest_num_each_slot", 1, UNLIMITED),
            ("timer_in_flight_max", 1, 100_000),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise ConfigError(f"{name} is {value}; it must be {least} to {most}")
