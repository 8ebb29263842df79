"""Options of a write, parsed and checked before any task starts. Pure.

`kourou.spark.option_table` has the names, defaults and meanings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kourou.client.config import RETRY_RESPONSE_CODES, ProducerConfig
from kourou.clock import SystemClock
from kourou.protocol.codes import ResponseCode
from kourou.protocol.compression import CompressionType
from kourou.spark.connection import ConnectionOptions
from kourou.spark.option_table import WRITES, Delivery, Scope, parse_texts
from kourou.spark.option_values import missing

COMPRESS_OVER_BYTES: Final = 4_096
"""Smaller bodies are not compressed, and stay in batches, which are never compressed."""

REFUSED_BEFORE_STORING: Final = frozenset(
    (ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL, ResponseCode.GO_AWAY)
)
"""Response codes of a broker that has certainly stored nothing, and may accept another try."""

_OF_SPARK: Final = frozenset(("checkpointlocation",))
"""Options of Spark's own that it passes to the sink of a stream, in lower case."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WriteOptions:
    """The options of one write; `option_table` has the meaning of each.

    Attributes:
        topic: topic of all rows; None: the column `topic` names each row's.
        write_id: id of a batch write; None for a streaming write, which has the id of its query.
    """

    client: ConnectionOptions
    topic: str | None
    write_id: str | None
    key_column: str | None
    rate_max: float | None
    batch_size: int
    max_message_bytes: int
    compression: CompressionType | None
    send_max_in_flight: int
    send_timeout_ms: int
    producer_group: str
    delivery: Delivery = Delivery.AT_LEAST_ONCE

    @property
    def is_resending(self) -> bool:
        """Whether rows are sent again that may be stored already."""
        return self.delivery is Delivery.AT_LEAST_ONCE

    def producer_config(self) -> ProducerConfig:
        """Return the settings of a producer in this process; reads the credentials.

        Raises:
            CredentialsError: the file or the environment does not hold both keys.
        """
        codes = RETRY_RESPONSE_CODES if self.is_resending else REFUSED_BEFORE_STORING
        return ProducerConfig(
            **self.client.settings(),
            retry_response_codes=codes,
            max_message_size_bytes=self.max_message_bytes,
            compress_body_over_bytes=None if self.compression is None else COMPRESS_OVER_BYTES,
            compress_type=self.compression or CompressionType.ZLIB,
        )


def parse_write_options(options: Mapping[str, str], *, is_stream: bool) -> WriteOptions:
    """Return the options of a write.

    Args:
        options: the option texts by name, in any case.
        is_stream: the write is a stream.

    Raises:
        UsageError: an option is unknown, missing, does not apply to the write, or is out of its
            range; the text names it.
    """
    given = {name: text for name, text in options.items() if name.lower() not in _OF_SPARK}
    scope = Scope.STREAM_WRITE if is_stream else Scope.WRITE
    groups: dict[str, dict[str, Any]] = parse_texts(given, WRITES, scope, SystemClock().now_ms())
    if groups["client"]["name_server"] is None:
        raise missing("nameServer")
    if groups[""]["write_id"] is None and not is_stream:
        raise missing("writeId", "; a repeated write needs the same id, another write another one")
    return WriteOptions(
        client=ConnectionOptions(**groups["client"]), **groups["source"], **groups[""]
    )
