"""Compression of message bodies before they are sent."""

from __future__ import annotations

from typing import Final

from kourou.client.calls_send import Outgoing, with_compressed_body
from kourou.client.config import ProducerConfig
from kourou.protocol.compression import compress
from kourou.remoting.runtime import Offload

_OFFLOAD_BYTES: Final = 256 * 1024
"""Larger bodies, which take zlib some milliseconds, are compressed off the event loop."""


async def compressed(outgoing: Outgoing, config: ProducerConfig, offload: Offload) -> Outgoing:
    """Return the message compressed if the config asks for it and the result is smaller."""
    threshold = config.compress_body_over_bytes
    if threshold is None or len(outgoing.body) < threshold or outgoing.is_batch:
        return outgoing
    kind, level = config.compress_type, config.compress_level
    if len(outgoing.body) <= _OFFLOAD_BYTES:
        body = compress(outgoing.body, level, kind)
    else:
        body = await offload(compress, outgoing.body, level, kind)
    return with_compressed_body(outgoing, body, kind)
