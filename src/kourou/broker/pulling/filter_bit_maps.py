"""Bit maps of the messages that come: which filters of their topic's groups they pass.

Made when a message gets its queue entry, where `enableCalcFilterBitMap` and `enableConsumeQueueExt`
are on; a message without one is evaluated by each pull instead.

Source: CommitLogDispatcherCalcBitMap.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import logging

from kourou.broker.live_config import LiveConfig
from kourou.broker.pulling.consumer_filters import ConsumerFilters
from kourou.errors import MalformedMessageError
from kourou.model.properties import decode_properties
from kourou.protocol.message_layout import read_record
from kourou.store.message_store import MessageStore
from kourou.store.queues.dispatch import Appended

log = logging.getLogger(__name__)


class FilterBitMaps:
    """Makes the bit maps of one store."""

    def __init__(self, config: LiveConfig, filters: ConsumerFilters, store: MessageStore) -> None:
        self._config = config
        self._filters = filters
        self._store = store

    def __call__(self, record: Appended) -> bytes:
        """Return the message's bit map; an empty one, which says nothing, if it gets none."""
        if not self._config.now.enable_calc_filter_bit_map:
            return b""
        filters = self._filters.of_topic(record.topic)
        if not filters:
            return b""
        try:
            data = self._store.written_bytes(record.physical_offset, record.size)
            header = read_record(data, check_crc=False)
        except (OSError, MalformedMessageError) as error:
            log.warning(
                "filter_bit_map.skipped physical_offset=%d error=%s", record.physical_offset, error
            )
            return b""
        start = header.properties_start
        properties = decode_properties(data[start : start + header.properties_size])
        bits = bytearray(self._filters.bloom.bit_count // 8)
        for one in filters:
            if one.compiled is None or one.compiled.matches(properties):
                for position in one.positions:
                    bits[position // 8] |= 1 << position % 8
        return bytes(bits)
