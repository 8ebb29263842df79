"""Invalid sizes and limits are refused with the name, the value and the allowed range."""

from __future__ import annotations

from dataclasses import fields

import pytest

from kourou.errors import ConfigError
from kourou.store.config import StoreConfig


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("commitlog_segment_bytes", 4095),
        ("consumequeue_file_bytes", 0),
        ("free_bytes_min", -1),
        ("queue_tail_bytes_max", 19),
        ("queue_sync_interval_ms", 0),
        ("queue_files_per_sync", 0),
        ("scan_bytes_max", 0),
        ("resident_bytes", -1),
        ("believed_bytes", -1),
        ("cold_get_bytes_max", 0),
        ("cold_get_messages_max", 0),
    ],
)
def test_a_value_out_of_range_is_refused(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"{name} is {value}; it must be"):
        StoreConfig(**{name: value})  # type: ignore[arg-type]


def test_queue_file_size_must_be_multiple_of_entry_size() -> None:
    with pytest.raises(ConfigError, match="multiple of 20"):
        StoreConfig(consumequeue_file_bytes=1010)


def test_empty_delay_levels_are_refused() -> None:
    with pytest.raises(ConfigError, match="delay_levels_ms"):
        StoreConfig(delay_levels_ms=())


def test_java_keys_are_unique() -> None:
    keys = [field.metadata["key"] for field in fields(StoreConfig) if "key" in field.metadata]

    assert len(keys) == len(set(keys))
    assert {"mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue"} <= set(keys)
