"""The options of transactions, with RocketMQ's keys and defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kourou.documented import documented
from kourou.errors import ConfigError

_SECOND_MS: Final = 1_000


@documented
@dataclass(frozen=True, kw_only=True)
class TransactionConfig:
    """How half messages are taken, ended and asked about.

    Raises:
        ConfigError: a value is out of its range.
    """

    reject_transaction_message: bool = field(default=False, metadata={"live": True})
    """Whether half messages are refused. Those that are stored may still be ended."""
    timeout_ms: int = field(
        default=6 * _SECOND_MS, metadata={"key": "transactionTimeOut", "live": True}
    )
    """How long a producer has, before it is asked what became of its half message. A message can
    ask for more, by the property CHECK_IMMUNITY_TIME_IN_SECONDS."""
    check_max: int = field(default=15, metadata={"key": "transactionCheckMax", "live": True})
    """How often producers are asked about a half message, before it is given up: it lies in
    TRANS_CHECK_MAX_TIME_TOPIC then."""
    check_interval_ms: int = field(
        default=30 * _SECOND_MS, metadata={"key": "transactionCheckInterval"}
    )
    """How often half messages are looked through, and so the time between two checks."""
    op_bytes_max: int = field(
        default=4096, metadata={"key": "transactionOpMsgMaxSize", "live": True}
    )
    """Ends of half messages are stored together when they fill so many bytes,"""
    op_interval_ms: int = field(
        default=3 * _SECOND_MS, metadata={"key": "transactionOpBatchInterval", "live": True}
    )
    """or after this time. A rollback is stored at once. A Java broker that goes on with this store
    after a kill -9 delivers messages again whose commit was within it; Kourou does not."""
    metric_flush_interval_ms: int = field(
        default=10 * _SECOND_MS, metadata={"key": "transactionMetricFlushInterval"}
    )
    """How often the counts of open half messages are written."""

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
                    f"{name} of transactions is {getattr(self, name)}; it must be {least} at least"
                )
