"""What a broker keeps in `config/*.json` beside its log: loaded at start, saved together."""

from __future__ import annotations

from kourou.broker.config import BrokerConfig, FlushDiskType
from kourou.broker.consumer_offsets import FILE_NAME as OFFSETS_FILE
from kourou.broker.consumer_offsets import ConsumerOffsets, parse_consumer_offsets
from kourou.broker.groups import FILE_NAME as GROUPS_FILE
from kourou.broker.groups import Groups
from kourou.broker.topic_attributes import has_batch_queues
from kourou.broker.topics import FILE_NAME as TOPICS_FILE
from kourou.broker.topics import Topics
from kourou.disk import Disk
from kourou.protocol.bodies import decode_subscription_group_table, decode_topic_config_table
from kourou.remoting.runtime import Runtime
from kourou.store.message_store import MessageStore
from kourou.store.state.config_file import ConfigFile


class Tables:
    """The topics, groups and committed offsets of one broker.

    Attributes:
        topics: all topics.
        groups: all consumer groups.
        offsets: how far each group has come; none beyond what the log holds.
    """

    def __init__(
        self, config: BrokerConfig, disk: Disk, runtime: Runtime, store: MessageStore
    ) -> None:
        """Load the tables of the broker whose store is open.

        Raises:
            CorruptRecordError: neither a file nor its backup parses.
        """
        is_sync = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self.topics = Topics(
            ConfigFile(disk, TOPICS_FILE, decode_topic_config_table, restores=True),
            config,
            runtime.offload,
            runtime.clock,
        )
        store.ask_kinds(lambda name: has_batch_queues(self.topics.get(name)))
        self.groups = Groups(
            ConfigFile(disk, GROUPS_FILE, decode_subscription_group_table, restores=True),
            runtime.offload,
            runtime.clock,
            auto_create=config.auto_create_subscription_group,
        )
        self.offsets = ConsumerOffsets(
            ConfigFile(disk, OFFSETS_FILE, parse_consumer_offsets, restores=True),
            runtime.offload,
            runtime.clock,
            # In sync mode nobody can commit what is not synced.
            None if is_sync else store,
        )
        self.offsets.clamp(store.max_offset)

    async def persist(self) -> None:
        """Write the tables that changed; one that cannot be written does not keep the others.

        Raises:
            OSError: one or several could not be written, and are as they were; the first error.
        """
        errors = []
        for table in (self.topics, self.groups, self.offsets):
            try:
                await table.persist()
            except OSError as error:
                errors.append(error)
        if errors:
            raise errors[0]
