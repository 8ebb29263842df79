"""The broker id that the answer to a pull suggests for the next pull of its queue.

With `slaveReadEnable`, a reader so far behind the end of the log that its messages are probably not
in memory is sent to a slave, by the id that its group names for that. Others, also those that have
caught up at the slave, are sent to the group's usual broker, which is the master unless an
administrator has changed the group. Without the option all are sent to the master.

Source: PullMessageProcessor.composeResponseHeader, DefaultMessageStore.getMessage,
apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from kourou.broker.context import BrokerContext
from kourou.model.group import SubscriptionGroup
from kourou.model.route import MASTER_ID
from kourou.store.message_store import GetPlan, GetStatus


class SuggestedBroker:
    """Chooses among the brokers of one name, for the fast and the general path."""

    def __init__(self, context: BrokerContext) -> None:
        """Choose by the options at the start."""
        rules = context.config.replication
        self._is_on = rules.slave_read_enable
        self._memory_bytes = rules.memory_bytes * rules.access_message_in_memory_max_ratio // 100
        self._reader = context.store.reader

    def id_for(self, group: SubscriptionGroup, end: int) -> int:
        """Return the suggested broker id.

        Args:
            group: the reader's.
            end: the byte of the log at which the last message that the pull has read ends.
        """
        if not self._is_on:
            return MASTER_ID
        if self._reader.written_position - end > self._memory_bytes:
            return group.which_broker_when_consume_slowly
        return group.broker_id

    def id_after(self, group: SubscriptionGroup, topic: str, queue_id: int, plan: GetPlan) -> int:
        """Return the suggested broker id of a reader whose pull had this plan."""
        if not self._is_on:
            return MASTER_ID
        if plan.ranges:
            return self.id_for(group, sum(plan.ranges[-1]))
        if plan.status is GetStatus.NO_MATCHED_MESSAGE:
            last = self._reader.entry_if_resident(topic, queue_id, plan.next_offset - 1)
            if last is not None:
                return self.id_for(group, last.physical_offset + last.size)
        return group.broker_id
