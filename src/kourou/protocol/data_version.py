"""Version of a broker's tables: the body of QUERY_DATA_VERSION, and a member of other bodies.

Source: DataVersion.java.
"""

from __future__ import annotations

from dataclasses import dataclass

from kourou.protocol.json_records import record_functions


@dataclass(frozen=True, slots=True)
class DataVersion:
    """Version of a table; two versions are the same if all three members are equal.

    Attributes:
        counter: number of changes since the table was created.
        state_version: version of the broker's role.
        timestamp: time of the last change in epoch milliseconds.
    """

    counter: int = 0
    state_version: int = 0
    timestamp: int = 0

    def next(self, now_ms: int) -> DataVersion:
        """Return the version after one more change, at `now_ms`."""
        return DataVersion(self.counter + 1, self.state_version, now_ms)


decode_data_version, encode_data_version = record_functions(DataVersion, "data version")
