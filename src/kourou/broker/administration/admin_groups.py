"""Administration of consumer groups: create, update, list, forbid to read, and delete.

Requests 200, 225, 201, 207, 352 and 353. A change is answered when it is durable. Connected members
are in `admin_clients.py`, the progress of groups in `admin_progress.py`.

Source: AdminBrokerProcessor.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Final

from kourou.broker.administration.admin_saving import save_and_answer
from kourou.broker.administration.topic_deletion import TopicDeletion
from kourou.broker.consuming.consumer_offsets import ConsumerOffsets
from kourou.broker.context import BrokerContext
from kourou.broker.popping.order_table import OrderInfoTable
from kourou.broker.reserved import check_not_reserved
from kourou.broker.topic_attributes import change_group_attributes
from kourou.errors import (
    GroupNotFoundError,
    InvalidGroupError,
    InvalidParameterError,
    InvalidTopicError,
)
from kourou.model.group import SubscriptionGroup
from kourou.model.topic import check_group
from kourou.protocol.codes import ResponseCode
from kourou.protocol.command import RemotingCommand, response
from kourou.protocol.data_version import decode_data_version
from kourou.protocol.groups import (
    DeleteSubscriptionGroupRequestHeader,
    GetAllSubscriptionGroupRequestHeader,
    GetAllSubscriptionGroupResponseHeader,
    GetSubscriptionGroupConfigRequestHeader,
    GroupForbidden,
    UpdateGroupForbiddenRequestHeader,
    decode_subscription_group,
    decode_subscription_group_list,
    encode_group_forbidden,
    encode_subscription_group,
)
from kourou.protocol.table_changes import REPLICA_FIELD
from kourou.remoting.connection import Request

PAGE_GROUPS_MAX: Final = 2000
"""Most groups in one page of an answer to 201."""
GROUPS_AT_ONCE: Final = 100
"""Groups of one request that are validated or stored before other tasks run: 10 ms at most."""
RETRY_QUEUES_MAX: Final = 1024
"""Most queues that may be requested for a group's retry topic."""


class GroupAdminHandlers:
    """Serves the requests."""

    def __init__(
        self,
        context: BrokerContext,
        offsets: ConsumerOffsets,
        order_infos: OrderInfoTable,
        deletion: TopicDeletion,
    ) -> None:
        """Create the handlers.

        Args:
            context: the broker's state and services.
            offsets: the offsets of a deleted group are removed here, if requested.
            order_infos: saved without those of a deleted group.
            deletion: deletes the pop retry topics of a deleted group.
        """
        self._groups = context.groups
        self._topics = context.topics
        self._deletion = deletion
        self._offsets = offsets
        self._order_infos = order_infos
        self._stats = context.stats
        self._later = context.later

    def on_update_and_create_subscription_group(self, request: Request) -> None:
        """Create or replace the group of the body (200)."""
        self._put(self._validated(decode_subscription_group(request.command.body)))
        self._later.answer(request, partial(self._save_and_answer, request))

    def on_update_and_create_subscription_group_list(self, request: Request) -> None:
        """Create or replace the groups of the body, and save them together (225).

        All groups are validated before the first one is stored. Other tasks run meanwhile.
        """
        groups = decode_subscription_group_list(request.command.body)

        async def serve() -> RemotingCommand:
            validated = []
            for number, group in enumerate(groups, 1):
                validated.append(self._validated(group))
                if not number % GROUPS_AT_ONCE:
                    await asyncio.sleep(0)
            for number, group in enumerate(validated, 1):
                self._put(group)
                if not number % GROUPS_AT_ONCE:
                    await asyncio.sleep(0)
            return await self._save_and_answer(request)

        self._later.answer(request, serve)

    def on_delete_subscription_group(self, request: Request) -> None:
        """Delete the group, with its offsets if requested (207); an unknown group is no error.

        Its pop retry topics are deleted in any case, as its messages in flight are dropped. The
        group is deleted first, so that no message is revived into them.

        Raises:
            NoPermissionError: the group is reserved for the broker.
        """
        header = request.command.header(DeleteSubscriptionGroupRequestHeader)
        group = header.group_name
        check_not_reserved(group)
        self._groups.delete(group)
        self._stats.on_group_deleted(group)
        if header.clean_offset:
            self._offsets.remove_group(group)

        async def serve() -> RemotingCommand:
            retry_topics = self._deletion.retry_topics_of_group(group)
            for name in retry_topics:
                await self._deletion.delete(name)
            answer = await self._save_and_answer(request)
            if retry_topics:
                await save_and_answer(answer, self._topics)
                await self._topics.wait_announced()
            return answer

        self._later.answer(request, serve)

    def on_get_subscription_group_config(self, request: Request) -> RemotingCommand:
        """Return one group, created now if its first use may create it (352)."""
        header = request.command.header(GetSubscriptionGroupConfigRequestHeader)
        host = request.remote_address[0]
        group = self._groups.get_or_create(header.group, host)
        if group is None:
            raise GroupNotFoundError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                self._groups.missing_reason(header.group, host),
            )
        return response(request.command, body=encode_subscription_group(group))

    def on_get_all_subscription_group_config(self, request: Request) -> RemotingCommand:
        """Return all groups, or one page of them sorted by name (201).

        A page starts at 0 unless the request names the current version of the table.
        """
        header = request.command.header(GetAllSubscriptionGroupRequestHeader)
        total = GetAllSubscriptionGroupResponseHeader(len(self._groups))
        asked = (header.group_seq, header.max_group_num, header.data_version)
        names = self._page(header) if any(value is not None for value in asked) else None
        is_replica = REPLICA_FIELD in request.command.ext_fields
        body = self._groups.body(names, with_deleted=is_replica)
        return response(request.command, header=total, body=body)

    def on_update_and_get_group_forbidden(self, request: Request) -> None:
        """Forbid or allow the group to read the topic, and return the resulting state (353)."""
        header = request.command.header(UpdateGroupForbiddenRequestHeader)
        if header.readable is not None:
            try:
                self._groups.set_read_forbidden(
                    header.group, header.topic, is_forbidden=not header.readable
                )
            except (InvalidGroupError, InvalidTopicError) as error:
                raise InvalidParameterError(ResponseCode.INVALID_PARAMETER, str(error)) from None
        is_readable = not self._groups.is_read_forbidden(header.group, header.topic)
        body = encode_group_forbidden(GroupForbidden(header.group, header.topic, is_readable))
        self._later.answer(request, partial(self._save_and_answer, request, body))

    def _page(self, header: GetAllSubscriptionGroupRequestHeader) -> list[str]:
        """Return the names of the groups on the requested page."""
        first, version = max(0, header.group_seq or 0), header.data_version
        if not version or decode_data_version(version.encode()) != self._groups.data_version:
            first = 0
        count = PAGE_GROUPS_MAX if header.max_group_num is None else header.max_group_num
        return sorted(self._groups.names())[first : first + max(0, min(count, PAGE_GROUPS_MAX))]

    def _validated(self, group: SubscriptionGroup) -> SubscriptionGroup:
        """Check the group, and return it with its attributes after the change.

        Attributes that the change does not name keep their values.

        Raises:
            InvalidParameterError: the name or the number of retry queues is invalid.
            RemoteSystemError: the change of attributes is refused.
        """
        _check(group)
        existing = self._groups.get(group.group_name)
        attributes = change_group_attributes(
            existing.attributes if existing is not None else {},
            group.attributes,
            is_new=existing is None,
        )
        return replace(group, attributes=attributes)

    def _put(self, group: SubscriptionGroup) -> None:
        """Create or replace the group.

        Raises:
            InvalidParameterError: the limit of groups is reached.
        """
        try:
            self._groups.put(group)
        except InvalidGroupError as error:
            raise InvalidParameterError(ResponseCode.INVALID_PARAMETER, str(error)) from None

    async def _save_and_answer(self, request: Request, body: bytes = b"") -> RemotingCommand:
        """Save the tables, and return the answer once they are durable."""
        answer = response(request.command, body=body)
        return await save_and_answer(answer, self._groups, self._order_infos, self._offsets)


def _check(group: SubscriptionGroup) -> None:
    """Check the name and the number of retry queues.

    Raises:
        InvalidParameterError: one of them is invalid.
    """
    try:
        check_group(group.group_name)
    except InvalidGroupError as error:
        raise InvalidParameterError(ResponseCode.INVALID_PARAMETER, str(error)) from None
    if not 0 <= group.retry_queue_nums <= RETRY_QUEUES_MAX:
        raise InvalidParameterError(
            ResponseCode.INVALID_PARAMETER,
            f"retryQueueNums is {group.retry_queue_nums}; it must be 0 to {RETRY_QUEUES_MAX}",
        )
