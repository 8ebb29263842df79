"""What a dead letter tells, and the message that it becomes when it is sent again; pure.

A dead letter is the message as it was last delivered, in `%DLQ%<group>`. Its properties say where
it came from:

    RETRY_TOPIC           the topic that its producer sent it to
    ORIGIN_MESSAGE_ID     the offset message id that it had there
    UNIQ_KEY              the id that its producer gave it, the same in every copy
    KOUROU_DLQ_REASON     why its last delivery failed, if the consumer was one of ours

Sent again it keeps content, keys, tag, user properties and the producer's id, so that a listener
which remembers what it has done knows it. KOUROU_REDRIVEN_FROM names the dead letter it was.
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
        group: the consumer group that could not consume it.
        message: the message, as it is stored in the group's dead-letter topic.
        is_redriven: it was sent again, by `redrive_all` at least.
    """

    group: str
    message: MessageExt
    is_redriven: bool = False

    @property
    def topic(self) -> str:
        """The topic that its producer sent it to; the dead-letter topic if nothing tells."""
        return self.message.properties.get(names.RETRY_TOPIC) or dlq_topic(self.group)

    @property
    def reason(self) -> str | None:
        """Why its last delivery failed; None if its consumer did not say."""
        return self.message.properties.get(names.DLQ_REASON)

    @property
    def deliveries(self) -> int:
        """How often it was given back."""
        return self.message.reconsume_times

    @property
    def died_at_ms(self) -> int:
        """When it became a dead letter, in epoch ms."""
        return self.message.store_at_ms


def redriven(dead: DeadMessage, *, to_topic: bool) -> Outgoing:
    """Return the message that is sent in place of a dead letter.

    Args:
        dead: with its body as it is stored, be it compressed.
        to_topic: to the topic it was first sent to, for all its groups; else to the group's retry
            topic, for the group alone.
    """
    message = dead.message
    properties = {
        name: value for name, value in message.properties.items() if name not in names.OF_A_DELIVERY
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
