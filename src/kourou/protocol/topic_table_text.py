"""The texts of all topics, joined of texts that are kept topic by topic: see `member_texts`."""

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
from kourou.protocol.member_texts import MemberTexts

_TOPICS: Final = "topicConfigTable"


class TopicTableText:
    """The file, the body and the registration: the same bytes as if encoded as a whole."""

    def __init__(self) -> None:
        self._members = MemberTexts()

    def put(self, topic: TopicConfig) -> None:
        """Add or replace a topic."""
        self._members.put(topic.name, topic_config_to_json(topic))

    def remove(self, name: str) -> None:
        """Remove a topic; ignore one that is not there."""
        self._members.remove(name)

    def encode(self, version: DataVersion) -> bytes:
        """Return `encode_topic_config_table` of the table with this version, pretty."""
        none = encode_topic_config_table(TopicConfigTable({}, version), pretty=True)
        return self._members.pretty(none, _TOPICS)

    def encode_body(self, version: DataVersion, names: Iterable[str] | None = None) -> bytes:
        """Return the same of all topics or those of `names`, not pretty."""
        none = encode_topic_config_table(TopicConfigTable({}, version))
        return self._members.compact(none, _TOPICS, names)

    def encode_registration(self, version: DataVersion) -> bytes:
        """Return `encode_register_body` of all topics."""
        none = encode_register_body(RegisterBody(TopicConfigTable({}, version)))
        return self._members.compact(none, _TOPICS)
