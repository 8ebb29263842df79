"""Inflation of zlib and gzip streams, by the package isal if it is installed.

isal takes an eighth of zlib's time for content that repeats itself, and half of it for text. The
event loop inflates small messages itself, and a stream of a few kilobytes may become megabytes.
isal also accepts gzip streams with reserved flags; otherwise both give the same
(`tests/protocol/test_inflate.py`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Final, Protocol

_codec: Any = zlib  # isal states another type for its error
try:
    from isal import isal_zlib

    _codec = isal_zlib
except ImportError:
    pass


class Inflater(Protocol):
    """Inflates one stream.

    Attributes:
        eof: the end of the stream was reached.
    """

    @property
    def eof(self) -> bool: ...

    def decompress(self, data: bytes | memoryview, max_length: int, /) -> bytes:
        """Return at most `max_length` bytes of content.

        Raises:
            InflateError: the stream is damaged.
        """


decompressobj: Final[Callable[[int], Inflater]] = _codec.decompressobj
"""Returns an `Inflater` for a form: `ZLIB_BITS` or `GZIP_BITS`."""
InflateError: Final[type[Exception]] = _codec.error
ZLIB_BITS: Final = zlib.MAX_WBITS
GZIP_BITS: Final = 16 + zlib.MAX_WBITS
