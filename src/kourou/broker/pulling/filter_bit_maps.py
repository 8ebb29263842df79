"""Bit maps of new messages: the set of their topic's group filters that each message passes.

A bit map is computed when a message gets its queue entry, if `enableCalcFilterBitMap` and
`enableConsumeQueueExt` are on. A message without one is evaluated by each pull instead.

Source: CommitLogDispatcherCalcBitMap.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import logging

from kourou.broker.live_config import LiveConfig
from kourou.broker.pulling.consumer_filters import ConsumerFilters
from kourou.errors import MalformedMessageError
from kourou.model.properties import decode_properties
from kourou.protocol.record.read import read_record
from kourou.store.message_store import MessageStore
from kourou.store.queues.dispatch import AppendedRecord

log = logging.getLogger(__name__)


class FilterBitMaps:
    """Computes the bit maps for one store."""

    def __init__(self, config: LiveConfig, filters: ConsumerFilters, store: MessageStore) -> None:
        self._config = config
        self._filters = filters
        self._reader = store.reader

    def __call__(self, record: AppendedRecord) -> bytes:
        """Return the message's bit map; empty, which excludes no filter, if it gets none."""
        if not self._config.current.enable_calc_filter_bit_map:
            return b""
        filters = self._filters.of_topic(record.topic)
        if not filters:
            return b""
        try:
            data = self._reader.written_bytes(record.physical_offset, record.size)
            header = read_record(data, check_crc=False)
        except (OSError, MalformedMessageError) as error:
            log.warning(
                "filter_bit_map.skipped physical_offset=%d error=%s", record.physical_offset, error
            )
            return b""
        properties = decode_properties(header.properties(data))
        bits = bytearray(self._filters.bloom.bit_count // 8)
        for one in filters:
            if one.compiled is None or one.compiled.matches(properties):
                for position in one.positions:
                    bits[position // 8] |= 1 << position % 8
        return bytes(bits)
