"""JSON text of the topic table, joined from cached texts of its topics: see `encoded_members`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kourou.model.topic import TopicConfig
from kourou.protocol.bodies_topics import (
    DataVersion,
    RegisterBody,
    TopicConfigTable,
    encode_register_body,
    encode_topic_config_table,
    topic_config_to_json,
)
from kourou.protocol.encoded_members import EncodedMembers

_TOPICS: Final = "topicConfigTable"


class TopicTableEncoder:
    """Builds the same bytes as `bodies_topics`, for the file, responses and registrations."""

    def __init__(self) -> None:
        self._members = EncodedMembers()

    def put(self, topic: TopicConfig) -> None:
        """Add or replace a topic."""
        self._members.put(topic.name, topic_config_to_json(topic))

    def remove(self, name: str) -> None:
        """Remove a topic; an unknown name is ignored."""
        self._members.remove(name)

    def encode(self, version: DataVersion) -> bytes:
        """Return the pretty text that `encode_topic_config_table` returns for the whole table."""
        empty_text = encode_topic_config_table(TopicConfigTable({}, version), pretty=True)
        return self._members.pretty(empty_text, _TOPICS)

    def encode_body(self, version: DataVersion, names: Iterable[str] | None = None) -> bytes:
        """Return the compact text of the table with all topics, or with those in `names`."""
        empty_text = encode_topic_config_table(TopicConfigTable({}, version))
        return self._members.compact(empty_text, _TOPICS, names)

    def encode_registration(self, version: DataVersion) -> bytes:
        """Return the body that `encode_register_body` returns for all topics."""
        empty_text = encode_register_body(RegisterBody(TopicConfigTable({}, version)))
        return self._members.compact(empty_text, _TOPICS)
