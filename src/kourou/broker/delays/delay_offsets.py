"""Progress of the delay levels, saved in `config/delayOffset.json`.

Source: ScheduleMessageService.encode, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from typing import Final

from kourou.broker.config_saver import SavedFile
from kourou.protocol.data_version import DataVersion
from kourou.protocol.offset_table import decode_delay_offset_table

FILE_NAME: Final = "config/delayOffset.json"


def parse_delay_offsets(text: bytes) -> tuple[DataVersion, dict[int, int]]:
    """Decode the file: its version, and level -> queue offset.

    Raises:
        MalformedBodyError: it is not such a file.
    """
    table = decode_delay_offset_table(text)
    return table.data_version or DataVersion(), dict(table.offsets)


def load_delay_offsets(file: SavedFile) -> tuple[DataVersion, dict[int, int]]:
    """Load the file; return an empty progress if it does not exist.

    Raises:
        CorruptRecordError: neither the file nor its backup parses.
    """
    text = file.load()
    return (DataVersion(), {}) if text is None else parse_delay_offsets(text)
