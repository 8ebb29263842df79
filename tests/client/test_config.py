"""Invalid config values are refused with their name, value and range."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kourou.client.config import AdminConfig, ClientConfig, ProducerConfig
from kourou.client.consuming.consumer_config import (
    PullConsumerConfig,
    PushConsumerConfig,
    SimpleConsumerConfig,
)
from kourou.errors import ConfigError
from kourou.model.group import ConsumeFromWhere
from kourou.protocol.compression import CompressionType

BAD: list[tuple[Callable[[], ClientConfig], str]] = [
    (lambda: ProducerConfig(send_timeout_ms=0), "send_timeout_ms is 0: allowed are 1 to 3600000"),
    (lambda: ProducerConfig(attempt_timeout_ms=9000), "attempt_timeout_ms is 9000: .* 1 to 3000"),
    (lambda: ProducerConfig(max_message_size_bytes=2**24), "max_message_size_bytes is 16777216"),
    (lambda: ProducerConfig(compress_level=10), "compress_level is 10: allowed are 1 to 9"),
    (lambda: ProducerConfig(linger_ms=4_000), "linger_ms is 4000: allowed are 0 to 3000"),
    (lambda: ProducerConfig(batch_bytes_max=0), "batch_bytes_max is 0"),
    (lambda: ProducerConfig(close_timeout_ms=-1), "close_timeout_ms is -1"),
    (lambda: ProducerConfig(latency_detector=True), "requires latency_fault_tolerance"),
    (lambda: ProducerConfig(detect_timeout_ms=0), "detect_timeout_ms is 0"),
    (lambda: ProducerConfig(detect_interval_ms=0), "detect_interval_ms is 0"),
    (
        lambda: ProducerConfig(compress_type=CompressionType.ZSTD, compress_level=23),
        "compress_level is 23: allowed are 1 to 22",
    ),
    (lambda: ClientConfig(namesrv_lookup_interval_ms=0), "namesrv_lookup_interval_ms is 0"),
    (lambda: PushConsumerConfig(consume_threads=0), "consume_threads is 0"),
    (lambda: PushConsumerConfig(allocation="RANDOM"), "allocation is RANDOM: expected one of AVG"),
    (lambda: PushConsumerConfig(pull_timeout_ms=15_000), "must be above pull_suspend_timeout_ms"),
    (
        lambda: PushConsumerConfig(consume_from_where=ConsumeFromWhere.MIN_OFFSET),
        "consume_from_where is CONSUME_FROM_MIN_OFFSET: expected one of",
    ),
    (lambda: PushConsumerConfig(consume_timestamp_ms=-1), "consume_timestamp_ms is -1"),
    (lambda: PullConsumerConfig(wait_ms=0), "wait_ms is 0"),
    (lambda: SimpleConsumerConfig(invisible_ms=999), "invisible_ms is 999: allowed are 1000 to"),
    (
        lambda: SimpleConsumerConfig(consume_from_where=ConsumeFromWhere.TIMESTAMP),
        "takes one of CONSUME_FROM_FIRST_OFFSET, CONSUME_FROM_LAST_OFFSET",
    ),
    (lambda: AdminConfig(admin_timeout_ms=0), "admin_timeout_ms is 0"),
    (lambda: ClientConfig(instance_name=" "), "instance_name is blank"),
    (lambda: ClientConfig(client_ip="here"), "client_ip: 'here' is not an IP address"),
    (lambda: ClientConfig(retry_backoff_max_ms=10), "retry_backoff_max_ms is 10: .* 50 to"),
]


@pytest.mark.parametrize(("make", "text"), BAD, ids=[text for _, text in BAD])
def test_value_out_of_range_is_refused(make: Callable[[], ClientConfig], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make()
