"""Bits of the sys_flag of messages and of pull requests.

Source: MessageSysFlag.java, PullSysFlag.java.
"""

from __future__ import annotations

from typing import Final

COMPRESSED: Final = 0x1
MULTI_TAGS: Final = 0x2

TRANSACTION_MASK: Final = 0xC
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC

BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20
NEED_UNWRAP: Final = 0x40
"""The body is a batch that the consumer splits into messages; set together with INNER_BATCH."""
INNER_BATCH: Final = 0x80

COMPRESSION_MASK: Final = 0x700
COMPRESSION_LZ4: Final = 0x100
COMPRESSION_ZSTD: Final = 0x200
COMPRESSION_ZLIB: Final = 0x300
"""Older clients set no type bits; their compressed bodies are zlib streams as well."""

PULL_COMMIT_OFFSET: Final = 1
"""The broker commits the request's commit_offset."""
PULL_SUSPEND: Final = 2
"""The broker may hold the request until a message arrives."""
PULL_SUBSCRIPTION: Final = 4
"""The request contains its own subscription."""
PULL_CLASS_FILTER: Final = 8
PULL_LITE: Final = 16
