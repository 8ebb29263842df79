"""AdminClient: whether groups pull or pop topics, where brokers share their queues out."""

from __future__ import annotations

from collections.abc import Mapping

from kourou.client.administration.admin_calls import AdminCalls, ask_all
from kourou.client.administration.plain_names import own_of
from kourou.errors import ConfigError, NoRouteError
from kourou.model.topic import check_group
from kourou.protocol.bodies import (
    MessageRequestMode,
    SetMessageRequestMode,
    decode_message_request_modes,
    encode_message_request_mode,
)
from kourou.protocol.codes import RequestCode


class RequestModeAdmin(AdminCalls):
    """Sets and tells the modes."""

    async def set_request_mode(
        self,
        topic: str,
        group: str,
        *,
        is_pop: bool,
        share_queues: int = 0,
        broker_name: str | None = None,
    ) -> list[str]:
        """Have members that let brokers share queues out pull or pop a topic.

        Java's setConsumeMode. Durable on each broker that is returned; members learn of it when
        they next ask, within 20 s.

        Args:
            topic: it must exist, and be no topic of retries.
            group: the consumer group.
            is_pop: whether it pops the topic. Kourou's own consumers do not pop.
            share_queues: of popping members, how many others read one's queues too; 0: all.
            broker_name: only there; None: on all brokers of the topic.

        Returns:
            The names of the brokers, sorted.

        Raises:
            InvalidGroupError, InvalidTopicError: a name is none.
            ConfigError: `share_queues` is negative.
            TopicNotFoundError: no name server knows the topic.
            NoRouteError: no broker of the topic has that name.
            NoPermissionError: it is a topic of retries.
        """
        check_group(group)
        if share_queues < 0:
            raise ConfigError(f"share_queues is {share_queues}: not negative")
        masters = await self._topic_masters(topic)
        if broker_name is not None:
            if broker_name not in masters:
                raise NoRouteError(
                    f"no broker {broker_name} has topic {topic}: {', '.join(masters)} have"
                )
            masters = {broker_name: masters[broker_name]}
        mode = MessageRequestMode.POP if is_pop else MessageRequestMode.PULL
        body = encode_message_request_mode(SetMessageRequestMode(topic, group, mode, share_queues))
        for server in masters.values():
            await server.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=body)
        return sorted(masters)

    async def request_modes(
        self,
    ) -> dict[str, Mapping[str, Mapping[str, SetMessageRequestMode]]]:
        """Return what is set, by broker name, topic and group."""
        told = await ask_all(
            await self._masters(),
            lambda server: server.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE),
        )
        return {
            name: own_of(
                self._config.namespace, decode_message_request_modes(body).message_request_mode_map
            )
            for name, body in told.items()
        }
