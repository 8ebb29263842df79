"""Version of a broker's tables: the body of QUERY_DATA_VERSION, and a member of other bodies.

Source: DataVersion.java.
"""

from __future__ import annotations

from dataclasses import dataclass

from kourou.protocol.fastjson import dumps, loads
from kourou.protocol.json_values import Json, as_object, get_integer


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


def data_version_to_json(version: DataVersion) -> dict[str, object]:
    """Return the JSON object of a version."""
    return {
        "counter": version.counter,
        "stateVersion": version.state_version,
        "timestamp": version.timestamp,
    }


def data_version_from_json(data: Json) -> DataVersion:
    """Return the version of a JSON object; missing members are 0.

    Raises:
        MalformedBodyError: a member is not an integer.
    """
    return DataVersion(
        get_integer(data, "counter"),
        get_integer(data, "stateVersion"),
        get_integer(data, "timestamp"),
    )


def encode_data_version(version: DataVersion) -> bytes:
    """Return the body of QUERY_DATA_VERSION (322), request or response."""
    return dumps(data_version_to_json(version))


def decode_data_version(body: bytes) -> DataVersion:
    """Return the version decoded from a body.

    Raises:
        MalformedBodyError: the body is not a JSON object, or a member is not an integer.
    """
    return data_version_from_json(as_object(loads(body), "data version"))
