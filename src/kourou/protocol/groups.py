"""Consumer groups: one group's configuration, and the table of all groups.

The table is the response body of 201 and the content of config/subscriptionGroup.json.

Source: SubscriptionGroupConfig.java, SubscriptionGroupWrapper.java, SubscriptionGroupList.java,
GroupForbidden.java, and the header classes of the same names in
org.apache.rocketmq.remoting.protocol.header.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kourou.model.group import SubscriptionGroup
from kourou.protocol.codes import RequestCode
from kourou.protocol.data_version import DataVersion
from kourou.protocol.encoded_members import EncodedMembers
from kourou.protocol.fastjson import dumps, loads
from kourou.protocol.fields import Int, RpcHeader, TopicHeader
from kourou.protocol.json_records import (
    from_json,
    list_functions,
    record_functions,
    to_json,
)
from kourou.protocol.json_values import (
    as_integer,
    as_object,
    get_object,
)
from kourou.protocol.request_spec import BodyCodec, RequestSpec

_DELETED: Final = "kourouDeletedGroups"
_TABLE: Final = "subscriptionGroupTable"

Forbidden = Mapping[str, Mapping[str, int]]
"""See `SubscriptionGroupTable`."""


@dataclass(slots=True)
class GetAllSubscriptionGroupRequestHeader:
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201): all groups or one page; has a response body."""

    group_seq: Int | None = None
    data_version: str | None = None
    max_group_num: Int | None = None


@dataclass(slots=True)
class GetAllSubscriptionGroupResponseHeader:
    """The number of groups on all pages."""

    total_group_num: Int | None = None


@dataclass(slots=True)
class DeleteSubscriptionGroupRequestHeader(RpcHeader):
    """DELETE_SUBSCRIPTIONGROUP (207); with `clean_offset`, the group's offsets are deleted too."""

    group_name: str
    clean_offset: bool = False


@dataclass(slots=True)
class GetSubscriptionGroupConfigRequestHeader(RpcHeader):
    """GET_SUBSCRIPTIONGROUP_CONFIG (352); has a response body."""

    group: str


@dataclass(slots=True)
class UpdateGroupForbiddenRequestHeader(TopicHeader):
    """UPDATE_AND_GET_GROUP_FORBIDDEN (353): a group's read permission; has a response body.

    Attributes:
        readable: the new permission; None only queries it.
    """

    group: str
    topic: str
    readable: bool | None = None


@dataclass(frozen=True, slots=True)
class SubscriptionGroupTable:
    """A broker's consumer groups, by name, and their version.

    Attributes:
        forbidden: group to topic to the bits of the operations forbidden to the group.
        deleted: group to the end of the log when it was deleted last; Kourou's own, in bodies only
            for replicas.
    """

    groups: Mapping[str, SubscriptionGroup] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    forbidden: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    deleted: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupForbidden:
    """Response body of UPDATE_AND_GET_GROUP_FORBIDDEN (353): whether a group may read a topic."""

    group: str
    topic: str
    readable: bool = True


decode_subscription_group, encode_subscription_group = record_functions(
    SubscriptionGroup, "subscription group"
)

decode_subscription_group_list, encode_subscription_group_list = list_functions(
    "groupConfigList", SubscriptionGroup, "subscription group list"
)

decode_group_forbidden, encode_group_forbidden = record_functions(GroupForbidden)


def encode_subscription_group_table(
    table: SubscriptionGroupTable, *, pretty: bool = False
) -> bytes:
    """Return the response body of 201, or with `pretty` config/subscriptionGroup.json."""
    return dumps(
        {
            "dataVersion": to_json(table.data_version),
            "forbiddenTable": {group: dict(topics) for group, topics in table.forbidden.items()},
            **({_DELETED: dict(table.deleted)} if table.deleted else {}),
            "subscriptionGroupTable": {
                name: to_json(group) for name, group in table.groups.items()
            },
        },
        pretty=pretty,
    )


def decode_subscription_group_table(data: bytes) -> SubscriptionGroupTable:
    """Return the table of a body or of config/subscriptionGroup.json.

    Raises:
        MalformedBodyError: the body is not a JSON object, or a member has the wrong type.
    """
    table = as_object(loads(data), "subscription group table")
    groups = {}
    for name, value in get_object(table, "subscriptionGroupTable").items():
        group = as_object(value, "subscriptionGroupTable")
        # Lookups use the key, so the key is the group's name.
        groups[name] = from_json(
            SubscriptionGroup, {**group, "groupName": name}, "subscriptionGroupTable"
        )
    return SubscriptionGroupTable(
        groups,
        from_json(DataVersion, table.get("dataVersion"), "dataVersion"),
        {
            group: {
                topic: as_integer(bits, "forbiddenTable")
                for topic, bits in as_object(topics, "forbiddenTable").items()
            }
            for group, topics in get_object(table, "forbiddenTable").items()
        },
        {
            group: as_integer(position, _DELETED)
            for group, position in get_object(table, _DELETED).items()
        },
    )


class GroupTableEncoder:
    """Builds the same bytes as `encode_subscription_group_table`, for the file and responses."""

    def __init__(self) -> None:
        self._members = EncodedMembers()

    def put(self, group: SubscriptionGroup) -> None:
        """Add or replace a group."""
        self._members.put(group.group_name, to_json(group))

    def remove(self, name: str) -> None:
        """Remove a group; an unknown name is ignored."""
        self._members.remove(name)

    def encode(
        self, version: DataVersion, forbidden: Forbidden, deleted: Mapping[str, int] | None = None
    ) -> bytes:
        """Return the text of the file."""
        empty_table = SubscriptionGroupTable({}, version, forbidden, deleted or {})
        return self._members.pretty(
            encode_subscription_group_table(empty_table, pretty=True), _TABLE
        )

    def encode_body(
        self,
        version: DataVersion,
        forbidden: Forbidden,
        names: Iterable[str] | None = None,
        deleted: Mapping[str, int] | None = None,
    ) -> bytes:
        """Return the response body with all groups, or with those in `names`."""
        empty_table = SubscriptionGroupTable({}, version, forbidden, deleted or {})
        return self._members.compact(encode_subscription_group_table(empty_table), _TABLE, names)


_GROUP: Final = BodyCodec(decode_subscription_group, encode_subscription_group)

SPECS: Final = (
    RequestSpec(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, request_body=_GROUP),
    RequestSpec(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        request_body=BodyCodec(decode_subscription_group_list, encode_subscription_group_list),
        body_bytes_max=32 * 1024,
    ),
    RequestSpec(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteSubscriptionGroupRequestHeader),
    RequestSpec(
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
        GetSubscriptionGroupConfigRequestHeader,
        response_body=_GROUP,
    ),
    RequestSpec(
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        GetAllSubscriptionGroupRequestHeader,
        GetAllSubscriptionGroupResponseHeader,
        response_body=BodyCodec(decode_subscription_group_table, encode_subscription_group_table),
    ),
    RequestSpec(
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
        UpdateGroupForbiddenRequestHeader,
        response_body=BodyCodec(decode_group_forbidden, encode_group_forbidden),
    ),
)
