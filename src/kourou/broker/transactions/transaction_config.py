"""Options of transactions, with RocketMQ's keys and defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kourou.documented import documented
from kourou.errors import ConfigError

_SECOND_MS: Final = 1_000


@documented
@dataclass(frozen=True, kw_only=True)
class TransactionConfig:
    """Options for half messages, their ends and their checks.

    Raises:
        ConfigError: a value is out of its range.
    """

    reject_transaction_message: bool = field(default=False, metadata={"live": True})
    """Whether half messages are refused. Half messages already stored can still be ended."""
    timeout_ms: int = field(
        default=6 * _SECOND_MS, metadata={"key": "transactionTimeOut", "live": True}
    )
    """Time that a producer has to end a transaction before a check is sent. A message can set a
    longer time by the property CHECK_IMMUNITY_TIME_IN_SECONDS."""
    check_max: int = field(default=15, metadata={"key": "transactionCheckMax", "live": True})
    """Maximum number of checks of a half message. It is then given up, and moved to
    TRANS_CHECK_MAX_TIME_TOPIC."""
    check_interval_ms: int = field(
        default=30 * _SECOND_MS, metadata={"key": "transactionCheckInterval"}
    )
    """Interval between check rounds, and so between two checks of a half message."""
    op_bytes_max: int = field(
        default=4096, metadata={"key": "transactionOpMsgMaxSize", "live": True}
    )
    """Ends of half messages are buffered and stored together once they fill this many bytes, or
    after `op_interval_ms`."""
    op_interval_ms: int = field(
        default=3 * _SECOND_MS, metadata={"key": "transactionOpBatchInterval", "live": True}
    )
    """Ends of half messages are buffered for at most this time. A rollback is stored at once. After
    a kill -9, a Java broker that continues with this store delivers again the messages committed
    within this time; Kourou does not."""
    metric_flush_interval_ms: int = field(
        default=10 * _SECOND_MS, metadata={"key": "transactionMetricFlushInterval"}
    )
    """Interval between writes of the counts of open half messages."""

    def __post_init__(self) -> None:
        for name, least in (
            ("timeout_ms", 1),
            ("check_max", 1),
            ("check_interval_ms", 1),
            ("op_bytes_max", 1),
            ("op_interval_ms", 1),
            ("metric_flush_interval_ms", 1),
        ):
            if getattr(self, name) < least:
                raise ConfigError(
                    f"{name} of transactions is {getattr(self, name)}; it must be at least {least}"
                )
