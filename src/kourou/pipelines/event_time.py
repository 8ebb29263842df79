"""Event time of messages: store time, or the producer's clock with rows set aside. Pure.

The store time is the broker's clock and orders a queue. The born time is the clock of a client,
which may be wrong: rows born more than `AHEAD_MAX_MS` after they were stored are set aside and
counted. So are rows that are late: born longer before they were stored than the lateness allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name in Spark programs

AHEAD_MAX_MS: Final = 600_000
"""Clocks further ahead than this are taken for wrong."""

AHEAD, LATE = "ahead", "late"
"""Values of the column `setAside`."""


class EventTime(Enum):
    """The clock that orders messages."""

    STORE = "store"
    BORN = "born"


LATENESS_DEFAULT_MS: Final[Mapping[EventTime, int]] = {
    EventTime.STORE: 60_000,
    EventTime.BORN: 600_000,
}
"""Store times of a stream differ by what brokers' clocks and batches do, born times by delays."""


def watermark_delay_ms(clock: EventTime, lateness_ms: int) -> int:
    """Return the delay of a watermark that drops no row of a broker that was always there.

    Between two batches, queues are apart by at most the lateness (`read_message_stream`). By the
    producers' clock, a row is at most the lateness older than its store time, and the row that sets
    the watermark at most `AHEAD_MAX_MS` younger than its own.
    """
    return lateness_ms if clock is EventTime.STORE else 2 * lateness_ms + AHEAD_MAX_MS


def stored_ms() -> Column:
    """Return the store time in epoch ms."""
    return F.unix_millis("storeTimestamp")


def born_ms() -> Column:
    """Return the born time in epoch ms."""
    return F.unix_millis("bornTimestamp")


def with_event_time(messages: DataFrame, clock: EventTime, lateness_ms: int) -> DataFrame:
    """Add `eventTime` and `setAside`, which is null, `ahead` or `late`.

    Args:
        messages: rows with storeTimestamp and bornTimestamp.
        clock: the clock; by store time no row is set aside.
        lateness_ms: maximum age of a message, by its producer's clock, when it is stored.
    """
    if clock is EventTime.STORE:
        return messages.withColumns(
            {"eventTime": F.col("storeTimestamp"), "setAside": F.lit(None).cast("string")}
        )
    delay_ms = stored_ms() - born_ms()
    set_aside = F.when(delay_ms < -AHEAD_MAX_MS, AHEAD).when(delay_ms > lateness_ms, LATE)
    return messages.withColumns({"eventTime": F.col("bornTimestamp"), "setAside": set_aside})
