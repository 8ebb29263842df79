"""Bits of sys_flag have Java's values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kourou.model import sysflag

VECTORS = Path(__file__).parent.parent / "golden" / "vectors"
TABLES = json.loads((VECTORS / "tables.json").read_text())
PULL_BITS = {
    "commit": sysflag.PULL_COMMIT_OFFSET,
    "suspend": sysflag.PULL_SUSPEND,
    "subscription": sysflag.PULL_SUBSCRIPTION,
    "class_filter": sysflag.PULL_CLASS_FILTER,
}


def test_message_flags_equal_javas() -> None:
    assert TABLES["message_sys_flag"] == {
        "BORNHOST_V6_FLAG": sysflag.BORN_HOST_V6,
        "COMPRESSED_FLAG": sysflag.COMPRESSED,
        "COMPRESSION_LZ4_TYPE": sysflag.COMPRESSION_LZ4,
        "COMPRESSION_TYPE_COMPARATOR": sysflag.COMPRESSION_MASK,
        "COMPRESSION_ZLIB_TYPE": sysflag.COMPRESSION_ZLIB,
        "COMPRESSION_ZSTD_TYPE": sysflag.COMPRESSION_ZSTD,
        "INNER_BATCH_FLAG": sysflag.INNER_BATCH,
        "MULTI_TAGS_FLAG": sysflag.MULTI_TAGS,
        "NEED_UNWRAP_FLAG": sysflag.NEED_UNWRAP,
        "STOREHOSTADDRESS_V6_FLAG": sysflag.STORE_HOST_V6,
        "TRANSACTION_COMMIT_TYPE": sysflag.TRANSACTION_COMMIT,
        "TRANSACTION_NOT_TYPE": 0,
        "TRANSACTION_PREPARED_TYPE": sysflag.TRANSACTION_PREPARED,
        "TRANSACTION_ROLLBACK_TYPE": sysflag.TRANSACTION_ROLLBACK,
    }
    assert sysflag.TRANSACTION_MASK == sysflag.TRANSACTION_PREPARED | sysflag.TRANSACTION_COMMIT


@pytest.mark.parametrize("case", TABLES["pull_sys_flag"], ids=lambda c: f"{c['flag']:04b}")
def test_pull_flags_equal_javas(case: dict[str, Any]) -> None:
    flag = sum(bit for name, bit in PULL_BITS.items() if case[name])

    assert flag == case["flag"]
    assert flag | sysflag.PULL_LITE == case["flag_lite"]
