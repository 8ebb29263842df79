"""JSON of consumer groups: one group's configuration, and the table of all groups.

The table is the response body of 201 and the content of config/subscriptionGroup.json.

Source: SubscriptionGroupConfig.java, SubscriptionGroupWrapper.java, SubscriptionGroupList.java,
GroupForbidden.java.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kourou.errors import MalformedBodyError
from kourou.model.group import SubscriptionGroup
from kourou.protocol.bodies_topics import (
    DataVersion,
    data_version_from_json,
    data_version_to_json,
)
from kourou.protocol.fastjson import dumps, loads
from kourou.protocol.json_records import decode_record, encode_record
from kourou.protocol.json_values import (
    Json,
    as_integer,
    as_object,
    as_stored_object,
    get_boolean,
    get_integer,
    get_list,
    get_object,
    get_text,
    get_text_map,
)


@dataclass(frozen=True, slots=True)
class SubscriptionGroupTable:
    """A broker's consumer groups, by name, and their version.

    Attributes:
        forbidden: group to topic to the bits of the operations forbidden to the group.
    """

    groups: Mapping[str, SubscriptionGroup] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    forbidden: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupForbidden:
    """Response body of UPDATE_AND_GET_GROUP_FORBIDDEN (353): whether a group may read a topic."""

    group: str
    topic: str
    readable: bool = True


def subscription_group_to_json(group: SubscriptionGroup) -> dict[str, object]:
    """Return the JSON object of a group."""
    subscriptions = group.subscription_datas
    return {
        "attributes": dict(group.attributes),
        "brokerId": group.broker_id,
        "consumeBroadcastEnable": group.consume_broadcast_enable,
        "consumeEnable": group.consume_enable,
        "consumeFromMinEnable": group.consume_from_min_enable,
        "consumeMessageOrderly": group.consume_message_orderly,
        "consumeTimeoutMinute": group.consume_timeout_minute,
        "groupName": group.group_name,
        "groupRetryPolicy": dict(group.group_retry_policy),
        "groupSysFlag": group.group_sys_flag,
        "notifyConsumerIdsChangedEnable": group.notify_consumer_ids_changed_enable,
        "retryMaxTimes": group.retry_max_times,
        "retryQueueNums": group.retry_queue_nums,
        "subscriptionDataSet": None if subscriptions is None else list(map(dict, subscriptions)),
        "whichBrokerWhenConsumeSlowly": group.which_broker_when_consume_slowly,
    }


def subscription_group_from_json(data: Json) -> SubscriptionGroup:
    """Return the group of a JSON object; missing members take SubscriptionGroup's defaults.

    Raises:
        MalformedBodyError: the group name is missing, or a member has the wrong type.
    """
    name = get_text(data, "groupName")
    if not name:
        raise MalformedBodyError("groupName is missing")
    default = SubscriptionGroup(name)
    return SubscriptionGroup(
        name,
        get_boolean(data, "consumeEnable", default=default.consume_enable),
        get_boolean(data, "consumeFromMinEnable", default=default.consume_from_min_enable),
        get_boolean(data, "consumeBroadcastEnable", default=default.consume_broadcast_enable),
        get_boolean(data, "consumeMessageOrderly", default=default.consume_message_orderly),
        get_integer(data, "retryQueueNums", default.retry_queue_nums),
        get_integer(data, "retryMaxTimes", default.retry_max_times),
        as_stored_object(data.get("groupRetryPolicy"), "groupRetryPolicy")
        or default.group_retry_policy,
        get_integer(data, "brokerId", default.broker_id),
        get_integer(data, "whichBrokerWhenConsumeSlowly", default.which_broker_when_consume_slowly),
        get_boolean(
            data,
            "notifyConsumerIdsChangedEnable",
            default=default.notify_consumer_ids_changed_enable,
        ),
        get_integer(data, "groupSysFlag", default.group_sys_flag),
        get_integer(data, "consumeTimeoutMinute", default.consume_timeout_minute),
        None
        if data.get("subscriptionDataSet") is None
        else tuple(
            as_stored_object(subscription, "subscriptionDataSet")
            for subscription in get_list(data, "subscriptionDataSet")
        ),
        get_text_map(data, "attributes"),
    )


def encode_subscription_group(group: SubscriptionGroup) -> bytes:
    """Return the request body of 200, which is also the response body of 352."""
    return dumps(subscription_group_to_json(group))


def decode_subscription_group(body: bytes) -> SubscriptionGroup:
    """Return the group decoded from a body.

    Raises:
        MalformedBodyError: as for `subscription_group_from_json`, or the body is not a JSON object.
    """
    return subscription_group_from_json(as_object(loads(body), "subscription group"))


def encode_subscription_group_list(groups: Sequence[SubscriptionGroup]) -> bytes:
    """Return the body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST (225)."""
    return dumps({"groupConfigList": [subscription_group_to_json(group) for group in groups]})


def decode_subscription_group_list(body: bytes) -> list[SubscriptionGroup]:
    """Return the groups decoded from a body.

    Raises:
        MalformedBodyError: as for `subscription_group_from_json`, or the body is not a JSON object.
    """
    groups = get_list(as_object(loads(body), "subscription group list"), "groupConfigList")
    return [subscription_group_from_json(as_object(group, "groupConfigList")) for group in groups]


def encode_group_forbidden(forbidden: GroupForbidden) -> bytes:
    """Return the response body of 353."""
    return encode_record(forbidden)


def decode_group_forbidden(body: bytes) -> GroupForbidden:
    """Return the answer decoded from a body. Raises like `json_records.decode_record`."""
    return decode_record(GroupForbidden, body)


def encode_subscription_group_table(
    table: SubscriptionGroupTable, *, pretty: bool = False
) -> bytes:
    """Return the response body of 201, or with `pretty` config/subscriptionGroup.json."""
    return dumps(
        {
            "dataVersion": data_version_to_json(table.data_version),
            "forbiddenTable": {group: dict(topics) for group, topics in table.forbidden.items()},
            "subscriptionGroupTable": {
                name: subscription_group_to_json(group) for name, group in table.groups.items()
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
        groups[name] = subscription_group_from_json({**group, "groupName": name})
    return SubscriptionGroupTable(
        groups,
        data_version_from_json(get_object(table, "dataVersion")),
        {
            group: {
                topic: as_integer(bits, "forbiddenTable")
                for topic, bits in as_object(topics, "forbiddenTable").items()
            }
            for group, topics in get_object(table, "forbiddenTable").items()
        },
    )
