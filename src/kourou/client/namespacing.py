"""Namespaces of clients: plain names in the client, qualified names on the wire.

The old form qualifies names (`ns%topic`, `%RETRY%ns%group`). It is applied to requests when they
are sent and received, so that all other code of a client uses plain names only. The new form keeps
names unchanged and adds the namespace to each request in the fields `nsd` and `ns`, for servers
that support namespaces; the brokers of RocketMQ 5.5 and Kourou ignore these fields.

Names in answers of administration requests are converted after decoding
(`client/administration/plain_names.py`).

Source: NamespaceUtil.java, ClientConfig.withNamespace, NamespaceRpcHook.java, apache/rocketmq
5.5.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from kourou.model import properties as names
from kourou.model.message import MessageExt
from kourou.model.namespace import with_namespace, without_namespace
from kourou.model.properties import decode_properties, encode_properties
from kourou.model.queue import MessageQueue
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.fastjson import dumps, loads
from kourou.protocol.offsets import (
    ConsumerStatus,
    decode_consumer_status,
    decode_reset_offsets,
    encode_consumer_status,
    encode_reset_offsets,
)
from kourou.protocol.running_info import (
    ConsumerRunningInfo,
    decode_consumer_running_info,
    encode_consumer_running_info,
)
from kourou.remoting.connection import Request
from kourou.remoting.dispatch import Handler

_FIELDS: Final = (
    "topic",
    "consumerGroup",
    "producerGroup",
    "group",
    "groupName",
    "originTopic",
    "srcGroup",
    "destGroup",
)
_SHORT_FIELDS: Final = ("a", "b")
"""Short names of the fields for group and topic in the usual send requests."""

_SHORT_SENDS: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
    }
)
_BODIES_WITH_NAMES: Final = frozenset(
    {
        RequestCode.HEART_BEAT,
        RequestCode.CHECK_CLIENT_CONFIG,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.QUERY_ASSIGNMENT,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    }
)
"""Requests whose JSON body contains names of topics and groups."""

_NAME_PROPERTIES: Final = frozenset({names.RETRY_TOPIC, names.PGROUP})
"""Properties that contain a topic or a group: of a message sent back, and of a half message."""

_ANSWERS_WITH_QUEUES: Final = frozenset({RequestCode.LOCK_BATCH_MQ, RequestCode.QUERY_ASSIGNMENT})
"""Requests whose answers contain queues."""

_NAMES: Final = frozenset({"topic", "group", "groupName", "consumerGroup"})

Rename = Callable[[str], str]
T = TypeVar("T")


class NamespaceHook:
    """Request hook that adds a namespace to the names in each request."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._inside = partial(with_namespace, namespace)
        self._outside = partial(without_namespace, namespace)

    def before_request(self, address: str, command: RemotingCommand) -> None:  # noqa: ARG002
        """Add the namespace to the names in a request; a second call has no effect."""
        is_send = command.code in _SHORT_SENDS
        _rename_fields(command, _SHORT_FIELDS if is_send else _FIELDS, self._inside)
        if is_send:
            self._change_properties(command)
        elif command.code in _BODIES_WITH_NAMES and command.body:
            command.body = _renamed_body(command.body, self._inside)

    def after_response(
        self,
        address: str,  # noqa: ARG002 - the protocol's
        command: RemotingCommand,
        answer: RemotingCommand,
    ) -> None:
        """Remove the namespace from the queues in an answer."""
        if command.code in _ANSWERS_WITH_QUEUES and answer.body:
            answer.body = _renamed_body(answer.body, self._outside)

    def _change_properties(self, command: RemotingCommand) -> None:
        """Add the namespace to the message's properties, and to the names among them."""
        text = command.ext_fields.get("i", "")
        if f"\x02{names.INSTANCE_ID}\x01" in f"\x02{text}":
            return
        if any(f"{name}\x01" in text for name in _NAME_PROPERTIES):
            properties = decode_properties(text.encode())
            for name in _NAME_PROPERTIES & properties.keys():
                properties[name] = self._inside(properties[name])
            text = encode_properties(properties).decode()
        command.ext_fields["i"] = f"{text}{names.INSTANCE_ID}\x01{self._namespace}\x02"


class NamespaceV2Hook:
    """Request hook that adds the namespace to the header of each request."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace

    def before_request(self, address: str, command: RemotingCommand) -> None:  # noqa: ARG002
        """Add the two fields."""
        command.ext_fields["nsd"] = "true"
        command.ext_fields["ns"] = self._namespace

    def after_response(
        self, address: str, command: RemotingCommand, answer: RemotingCommand
    ) -> None:
        """Leave the answer unchanged."""


def plain_name_handlers(namespace: str, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
    """Return handlers of broker requests that convert names to plain ones and back."""
    if not namespace:
        return dict(handlers)
    return {code: _plain_name_handler(namespace, handler) for code, handler in handlers.items()}


def remove_namespace(namespace: str, messages: Iterable[MessageExt]) -> None:
    """Remove the namespace from the topics of received messages."""
    if not namespace:
        return
    for message in messages:
        message.topic = without_namespace(namespace, message.topic)
        origin = message.properties.get(names.RETRY_TOPIC)
        if origin is not None:
            message.properties[names.RETRY_TOPIC] = without_namespace(namespace, origin)


def _plain_name_handler(namespace: str, handler: Handler) -> Handler:
    inside, outside = partial(with_namespace, namespace), partial(without_namespace, namespace)

    def serve(request: Request) -> RemotingCommand | None:
        command = request.command
        _rename_fields(command, _FIELDS, outside)
        if command.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            offsets = decode_reset_offsets(command.body)
            command.body = encode_reset_offsets(_renamed_queues(offsets, outside))
        answer = handler(request)
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return answer
        if command.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
            status = decode_consumer_status(answer.body)
            offsets = _renamed_queues(status.offsets, inside)
            answer.body = encode_consumer_status(ConsumerStatus(offsets))
        elif command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            info = _renamed_info(decode_consumer_running_info(answer.body), inside)
            answer.body = encode_consumer_running_info(info)
        return answer

    return serve


def _rename_fields(command: RemotingCommand, fields: Iterable[str], rename: Rename) -> None:
    for field in fields:
        text = command.ext_fields.get(field)
        if text is not None:
            command.ext_fields[field] = rename(text)


def _renamed_queues(by_queue: Mapping[MessageQueue, T], rename: Rename) -> dict[MessageQueue, T]:
    return {replace(queue, topic=rename(queue.topic)): one for queue, one in by_queue.items()}


def _renamed_info(info: ConsumerRunningInfo, rename: Rename) -> ConsumerRunningInfo:
    return replace(
        info,
        subscriptions=[replace(one, topic=rename(one.topic)) for one in info.subscriptions],
        queues=_renamed_queues(info.queues, rename),
        pop_queues=_renamed_queues(info.pop_queues, rename),
        statuses={rename(topic): one for topic, one in info.statuses.items()},
    )


def _renamed_body(body: bytes, rename: Rename) -> bytes:
    return dumps(_renamed(loads(body), rename))


def _renamed(value: Any, rename: Rename) -> Any:  # noqa: ANN401 - any JSON value
    """Return a JSON value with topics and groups renamed at any depth."""
    if isinstance(value, dict):
        return {
            key: rename(one) if key in _NAMES and isinstance(one, str) else _renamed(one, rename)
            for key, one in value.items()
        }
    if isinstance(value, list):
        return [_renamed(one, rename) for one in value]
    return value
