"""Send plans: the data needed to send to a topic, cached between messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kourou.client.calls_send import check_message
from kourou.client.config import ProducerConfig
from kourou.client.instance import ClientInstance
from kourou.client.sending.queue_choice import RoundRobin, RoundRobins
from kourou.client.sending.send_frames import SendFrames
from kourou.errors import UsageError
from kourou.model.message import Message
from kourou.model.route import TopicRoute
from kourou.remoting.network import format_address, parse_address

_VIP_PORT_DISTANCE: Final = 2


@dataclass(frozen=True, slots=True)
class BrokerTarget:
    """Address of one broker, and the frame templates for it."""

    address: str
    frames: SendFrames


@dataclass(slots=True)
class Plan:
    """Cached data of a topic, derived from its route and valid as long as the route is the same.

    Attributes:
        round_robin: chooses the next queue.
        targets: by broker name; None for a broker that needs the general path.
    """

    route: TopicRoute
    round_robin: RoundRobin
    targets: dict[str, BrokerTarget | None] = field(default_factory=dict)


class SendPlans:
    """The send plans of one producer, for at most `routes_max` topics."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        config: ProducerConfig,
        round_robins: RoundRobins,
    ) -> None:
        self._routes = instance.routes
        self._group = group
        self._config = config
        self._round_robins = round_robins
        self._plans: dict[str, Plan] = {}

    def get(self, message: Message) -> Plan | None:
        """Return the plan of a message's topic; None if no route is cached.

        A new plan is created only for a valid message; for an invalid one the result is None.
        """
        topic = message.topic
        route = self._routes.cached(topic)
        plan = self._plans.get(topic)
        if plan is not None and plan.route is route:
            return plan
        if route is None:
            return None
        try:
            check_message(message, self._config)
        except UsageError:
            return None
        if len(self._plans) >= self._config.routes_max:
            self._plans.clear()
        plan = self._plans[topic] = Plan(route, self._round_robins.get(topic))
        return plan

    def target(self, plan: Plan, topic: str, broker_name: str) -> BrokerTarget | None:
        """Return the target of a broker.

        None if the route has no master of that broker, or no frame template can be used.
        """
        try:
            return plan.targets[broker_name]
        except KeyError:
            target = plan.targets[broker_name] = self._build_target(plan.route, topic, broker_name)
            return target

    def _build_target(self, route: TopicRoute, topic: str, broker_name: str) -> BrokerTarget | None:
        address = route.master_address(broker_name)
        if address is None:
            return None
        queue_nums = self._config.default_topic_queue_nums
        frames = SendFrames(self._group, topic, broker_name, queue_nums)
        if not frames.is_usable:
            return None
        return BrokerTarget(vip_address(address) if self._config.vip_channel else address, frames)


def vip_address(address: str) -> str:
    """Return the address of a broker's second port, which serves all requests except pulls.

    Source: MixAll.brokerVIPChannel.
    """
    host, port = parse_address(address)
    return format_address((host, port - _VIP_PORT_DISTANCE))
