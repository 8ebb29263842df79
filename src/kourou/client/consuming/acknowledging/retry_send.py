"""Sends a copy of a failed message to the group's retry topic.

Used if its broker does not accept the message sent back, or for a delay that is not a level.

Source: DefaultMQPushConsumerImpl.sendMessageBackAsNormalMessage.
"""

from __future__ import annotations

from typing import Final

from kourou.client.calls_send import Outgoing, send_command, send_message
from kourou.client.consuming.acknowledging.redelivery import (
    DEFAULT,
    FIRST_DELAY_LEVEL,
    Redelivery,
)
from kourou.client.instance import ClientInstance
from kourou.errors import NoRouteError
from kourou.model import properties as names
from kourou.model.message import MessageExt
from kourou.model.properties import encode_properties
from kourou.model.queue import MessageQueue
from kourou.model.route import publish_queues
from kourou.model.topic import retry_topic

_DEFAULT_QUEUE_NUMS: Final = 1


async def send_to_retry_topic(
    instance: ClientInstance,
    group: str,
    message: MessageExt,
    *,
    max_reconsume_times: int | None,
    timeout_s: float,
    redelivery: Redelivery = DEFAULT,
) -> None:
    """Store a copy of the message on a broker of the retry topic, for later redelivery.

    Brokers other than the message's own are preferred. The copy counts one more delivery; above
    `max_reconsume_times` the broker stores it as a dead letter. To have it stored as a dead letter
    immediately, the limit in the request is set below that count.

    Args:
        instance: the client's connections and routes.
        group: the consumer group.
        message: as pulled.
        max_reconsume_times: None: the broker's limit for the group.
        timeout_s: for each of two requests.
        redelivery: the requested redelivery.

    Raises:
        TransportError: no response arrived; the copy may be stored.
        RemoteError: no broker has the retry topic, or the broker refused the copy.
    """
    topic = retry_topic(group)
    route = await instance.routes.get(topic, timeout_s)
    queues = publish_queues(topic, route)
    others = [queue for queue in queues if queue.broker_name != message.broker_name]
    if not queues:
        raise NoRouteError(f"no broker accepts messages for {topic}")
    queue: MessageQueue = instance.runtime.random.choice(others or queues)
    reconsume_times = message.reconsume_times + 1
    properties = {
        name: value
        for name, value in message.properties.items()
        if name not in names.DELIVERY_PROPERTIES
    }
    properties.setdefault(names.ORIGIN_MESSAGE_ID, message.msg_id)
    properties[names.RETRY_TOPIC] = message.topic
    if redelivery.level < 0:
        max_reconsume_times = message.reconsume_times
    if redelivery.delay_ms is not None:
        properties[names.TIMER_DELAY_MS] = str(redelivery.delay_ms)
    else:
        next_level = FIRST_DELAY_LEVEL + message.reconsume_times
        properties[names.DELAY] = str(redelivery.level if redelivery.level > 0 else next_level)
    may_die = max_reconsume_times is None or reconsume_times > max_reconsume_times
    if redelivery.reason is not None and may_die:
        properties[names.DLQ_REASON] = redelivery.reason
    outgoing = Outgoing(
        topic, (message.msg_id,), message.body, encode_properties(properties).decode(), message.flag
    )
    now_ms = instance.runtime.clock.now_ms()
    command = send_command(
        outgoing,
        queue,
        group,
        now_ms,
        _DEFAULT_QUEUE_NUMS,
        reconsume_times=reconsume_times,
        max_reconsume_times=max_reconsume_times,
    )
    address = await instance.routes.address(topic, queue.broker_name, timeout_s)
    await send_message(instance.pool, address, command, outgoing, queue, timeout_s=timeout_s)
