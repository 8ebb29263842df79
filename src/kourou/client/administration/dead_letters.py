"""Dead letters, and the messages by which they are redriven; pure.

A dead letter is a copy of the last delivered message, in the topic `%DLQ%<group>`. Its properties
describe the origin:

    RETRY_TOPIC           the topic to which the producer sent the message
    ORIGIN_MESSAGE_ID     the offset message id in that topic
    UNIQ_KEY              the unique id set by the producer, the same in every copy
    KOUROU_DLQ_REASON     why the last delivery failed, if the consumer was Kourou's

A redriven message keeps the body, keys, tag, user properties and unique id, so that an idempotent
listener recognizes it. KOUROU_REDRIVEN_FROM is the offset message id of the dead letter.
"""

from __future__ import annotations

from dataclasses import dataclass

from kourou.client.calls_send import Outgoing
from kourou.model import properties as names
from kourou.model.message import MessageExt
from kourou.model.properties import encode_properties
from kourou.model.sysflag import COMPRESSED, COMPRESSION_MASK
from kourou.model.topic import dlq_topic, retry_topic


@dataclass(frozen=True, slots=True)
class DeadMessage:
    """One dead letter.

    Attributes:
        group: the consumer group that failed to consume the message.
        message: the message as stored in the group's dead-letter topic.
        is_redriven: `redrive_all` has sent it again. False does not exclude a call of `redrive`.
    """

    group: str
    message: MessageExt
    is_redriven: bool = False

    @property
    def topic(self) -> str:
        """The topic to which the producer sent the message; the dead-letter topic if unknown."""
        return self.message.properties.get(names.RETRY_TOPIC) or dlq_topic(self.group)

    @property
    def reason(self) -> str | None:
        """The reason why the last delivery failed; None if the consumer gave none."""
        return self.message.properties.get(names.DLQ_REASON)

    @property
    def deliveries(self) -> int:
        """The number of times that the message was sent back."""
        return self.message.reconsume_times

    @property
    def died_at_ms(self) -> int:
        """The time at which it became a dead letter, in epoch ms."""
        return self.message.store_at_ms


def redrive_message(dead: DeadMessage, *, to_topic: bool) -> Outgoing:
    """Return the message by which a dead letter is redriven.

    Args:
        dead: the dead letter with its body as stored, possibly compressed.
        to_topic: send to the original topic, for all its groups; otherwise to the group's retry
            topic, for the group alone.
    """
    message = dead.message
    properties = {
        name: value
        for name, value in message.properties.items()
        if name not in names.DELIVERY_PROPERTIES
    }
    properties[names.REDRIVEN_FROM] = message.offset_msg_id
    if to_topic:
        properties.pop(names.RETRY_TOPIC, None)
    return Outgoing(
        dead.topic if to_topic else retry_topic(dead.group),
        (message.msg_id,),
        message.body,
        encode_properties(properties).decode(),
        message.flag,
        message.sys_flag & (COMPRESSED | COMPRESSION_MASK),
    )
