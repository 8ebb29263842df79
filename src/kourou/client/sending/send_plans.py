"""Send plans: the data needed to send to a topic, with frame templates, cached between messages."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

import msgspec

from kourou.client.calls_send import Outgoing, check_message, send_command
from kourou.client.config import ProducerConfig
from kourou.client.instance import ClientInstance
from kourou.client.sending.queue_choice import RoundRobin, RoundRobins
from kourou.errors import UsageError
from kourou.model.message import Message
from kourou.model.queue import MessageQueue
from kourou.model.route import TopicRoute
from kourou.protocol.frame import FRAME_SIZE_MAX, FRAME_SIZE_MIN, header_template
from kourou.remoting.network import format_address, parse_address

_VIP_PORT_DISTANCE: Final = 2


_SIZES: Final = struct.Struct(">II")

_MARKERS: Final = (2_147_483_629, 8_191_919_191_919_191_919, -2_147_483_587, 2_147_483_543)
"""Markers of queue id, born timestamp, flag and opaque; none contains another one."""

_PROPERTIES_MARKER: Final = "\x7f properties \x7f"  # no name of a topic, group or broker has blanks

_encode_text: Final = msgspec.json.Encoder().encode


class SendFrames:
    """Encoder of plain messages, neither compressed nor batched, for one topic and broker.

    It builds no header and no command. Requests that one producer sends to one topic of one broker
    differ in five header fields and in the body: see `header_template`. The frames are therefore
    the same as those of the general encoder, and take a tenth of its time.

    Args:
        group: the producer group.
        topic: the topic.
        broker_name: the broker of the queues.
        default_queue_nums: as in `send_command`.

    Attributes:
        is_usable: False if a name contains a marker; `frame` must then not be called.
    """

    def __init__(self, group: str, topic: str, broker_name: str, default_queue_nums: int) -> None:
        queue_id, born_at_ms, flag, opaque = _MARKERS
        queue = MessageQueue(topic, broker_name, queue_id)
        outgoing = Outgoing(topic, (), b"", _PROPERTIES_MARKER, flag)
        command = send_command(outgoing, queue, group, born_at_ms, default_queue_nums)
        command.opaque = opaque
        markers = {b"%d" % number: b"%d" for number in _MARKERS}
        markers[_encode_text(_PROPERTIES_MARKER)] = b"%b"
        template = header_template(command, markers)
        self.is_usable = template is not None
        self._template = template or b""

    def frame(
        self, queue_id: int, born_at_ms: int, flag: int, properties: bytes, opaque: int, body: bytes
    ) -> bytes | None:
        """Return the complete frame; None if it exceeds the maximum frame size.

        `properties` is the result of `property_json`.
        """
        header = self._template % (queue_id, born_at_ms, flag, properties, opaque)
        header_size = len(header)
        size = FRAME_SIZE_MIN + header_size + len(body)
        if size > FRAME_SIZE_MAX:
            return None
        return b"".join((_SIZES.pack(size, header_size), header, body))


def property_json(text: str) -> bytes:
    """Return encoded properties as a JSON string for the header.

    Raises:
        UnicodeEncodeError: the text is not valid Unicode (a lone surrogate).
    """
    return _encode_text(text)


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
