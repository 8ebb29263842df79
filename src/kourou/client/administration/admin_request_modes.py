"""AdminClient methods for request modes: pull or pop, with queues assigned by brokers."""

from __future__ import annotations

from collections.abc import Mapping

from kourou.client.administration.admin_calls import AdminCalls, call_all
from kourou.client.administration.plain_names import own_entries
from kourou.errors import ConfigError, NoRouteError
from kourou.model.topic import check_group
from kourou.protocol.codes import RequestCode
from kourou.protocol.queue_assignment import (
    MessageRequestMode,
    SetMessageRequestMode,
    decode_message_request_modes,
    encode_message_request_mode,
)


class RequestModeAdmin(AdminCalls):
    """Sets and lists request modes."""

    async def set_request_mode(
        self,
        topic: str,
        group: str,
        *,
        is_pop: bool,
        share_queues: int = 0,
        broker_name: str | None = None,
    ) -> list[str]:
        """Set the request mode of a group for a topic: pull or pop.

        It applies to members whose queues are assigned by brokers. Called setConsumeMode in Java.
        The mode is durable on each broker in the result. Members get it by their next assignment
        request, within 20 s.

        Args:
            topic: an existing topic; not a retry topic.
            group: the consumer group.
            is_pop: True for pop, which Kourou's own consumers do not support.
            share_queues: with pop, the number of other members that read the queues of a member
                too; 0: all.
            broker_name: only on this broker; None: on all brokers of the topic.

        Returns:
            The names of the brokers, sorted.

        Raises:
            InvalidGroupError, InvalidTopicError: a name is not valid.
            ConfigError: `share_queues` is negative.
            TopicNotFoundError: the name servers do not have the topic.
            NoRouteError: the topic is not on the named broker.
            NoPermissionError: the topic is a retry topic.
        """
        check_group(group)
        if share_queues < 0:
            raise ConfigError(f"share_queues is {share_queues}: it must not be negative")
        masters = await self._topic_masters(topic)
        if broker_name is not None:
            if broker_name not in masters:
                raise NoRouteError(
                    f"topic {topic} is not on {broker_name}, but on: {', '.join(masters)}"
                )
            masters = {broker_name: masters[broker_name]}
        mode = MessageRequestMode.POP if is_pop else MessageRequestMode.PULL
        body = encode_message_request_mode(SetMessageRequestMode(topic, group, mode, share_queues))
        for server in masters.values():
            await server.request_body(RequestCode.SET_MESSAGE_REQUEST_MODE, body=body)
        return sorted(masters)

    async def request_modes(
        self,
    ) -> dict[str, Mapping[str, Mapping[str, SetMessageRequestMode]]]:
        """Return the request modes by broker name, topic and group."""
        answers = await call_all(
            await self._masters(),
            lambda server: server.request_body(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE),
        )
        return {
            name: own_entries(
                self._config.namespace, decode_message_request_modes(body).message_request_mode_map
            )
            for name, body in answers.items()
        }
