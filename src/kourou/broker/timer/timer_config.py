"""Options of scheduled messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kourou.documented import documented
from kourou.errors import ConfigError
from kourou.store.timer.layouts import BLANK, UNIT_BYTES
from kourou.store.timer.slot_choice import ROLL_WINDOW_SLOTS, ROLL_WINDOW_SLOTS_MAX
from kourou.store.timer.timer_log import LOG_FILE_BYTES

_YEAR_S: Final = 366 * 86_400
UNLIMITED: Final = 2**31 - 1
"""Value of `timer_congest_num_each_slot` for no limit."""


@documented
@dataclass(frozen=True, kw_only=True)
class TimerConfig:
    """Options of the timer. Fields marked `live` can be changed while the broker runs.

    Raises:
        ConfigError: a value is out of its range.
    """

    timer_wheel_enable: bool = True
    """Whether scheduled messages (TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS) are served. If
    not, sends of them are refused, and stored ones are not delivered."""
    timer_max_delay_sec: int = field(default=10 * _YEAR_S, metadata={"live": True})
    """Longest accepted delay, in seconds. Java's default is three days; here messages with a longer
    delay are rolled. The limit only guards against times in microseconds."""
    timer_roll_window_slot: int = ROLL_WINDOW_SLOTS
    """A message with this many seconds or more to wait is stored again on the way, so that its
    record does not expire. With a short `fileReservedTime`, the limit is two thirds of that."""
    timer_flush_interval_ms: int = 1_000
    """Interval at which the timer's progress is made durable, in ms. After a kill -9, later
    progress is recovered from the timer topic and the commit log."""
    timer_log_file_bytes: int = field(
        default=LOG_FILE_BYTES, metadata={"key": "mappedFileSizeTimerLog"}
    )
    """Size of one file of a new timer log, in bytes. Files are sparse; a message takes 52 bytes. An
    existing log keeps its size."""
    timer_congest_num_each_slot: int = field(default=UNLIMITED, metadata={"live": True})
    """Number of messages due in one second above which sends for that second are refused at random,
    with growing probability; above twice the number, all are refused."""
    timer_in_flight_max: int = 2_048
    """Limit on messages being delivered at once. RocketMQ has no such key."""
    recall_message_enable: bool = field(default=True, metadata={"live": True})
    """Whether producers may recall scheduled messages (request 370). Java's default is false."""
    allow_recall_when_broker_not_writeable: bool = field(default=True, metadata={"live": True})
    """Whether recalls are accepted while `brokerPermission` forbids sends."""
    append_topic_for_timer_delete_key: bool = field(default=False, metadata={"live": True})
    """Whether a recall names the topic of its message beside the unique id, as Java before 5.4
    requires. Kourou understands both forms."""

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
