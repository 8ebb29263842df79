"""The copies that sends wait for with the classic protocol: `inSyncReplicas`, or fewer.

With `enableAutoInSyncReplicas` as many brokers must have a message as are in sync, the master
included, at most `inSyncReplicas` and at least `minInSyncReplicas`:

    in sync                            a send
    at least inSyncReplicas            waits for inSyncReplicas brokers
    fewer                              waits for those that are in sync
    fewer than minInSyncReplicas       is refused, and none is acknowledged

The number is found out again whenever a slave joins, reports or leaves, and each second. So sends
that wait for a slave that leaves are acknowledged without it.

Source: CommitLog.calcNeedAckNums, apache/rocketmq 5.5.0, which does so with
`enableSlaveActingMaster` only, and once for each send.
"""

from __future__ import annotations

from kourou.broker.replication.master import ReplicationMaster
from kourou.broker.replication.replication_config import ReplicationConfig
from kourou.broker.writing.copy_waits import CopyRule
from kourou.broker.writing.group_commit import GroupCommit
from kourou.broker.writing.put import PutResult, PutStatus


class ClassicCopies:
    """Decides which sends of one master are acknowledged, as far as copies decide."""

    def __init__(
        self, config: ReplicationConfig, master: ReplicationMaster, commit: GroupCommit
    ) -> None:
        """Let sends wait, before any is accepted."""
        self._config = config
        self._master = master
        self._commit = commit
        timeout_ms = config.slave_timeout_ms
        reason = (
            f"fewer than {config.in_sync_replicas - 1} slaves (inSyncReplicas - 1) reported the "
            f"message within {timeout_ms} ms (slaveTimeout)"
        )
        commit.wait_for_copies(CopyRule(self._copied_position, timeout_ms, reason))
        if config.enable_auto_in_sync_replicas:
            master.on_slaves_changed = self._update
            self._update()
        else:
            master.on_slaves_changed = commit.on_copied

    def _copied_position(self) -> int:
        return self._master.copied_position(self._needed() - 1)

    def _needed(self) -> int:
        """Return how many brokers must have a message."""
        config = self._config
        # A master that is stopping has closed its slaves' connections itself.
        if not config.enable_auto_in_sync_replicas or not self._master.is_started:
            return config.in_sync_replicas
        in_sync = self._master.in_sync_brokers
        return max(config.min_in_sync_replicas, min(config.in_sync_replicas, in_sync))

    def _update(self) -> None:
        in_sync, least = self._master.in_sync_brokers, self._config.min_in_sync_replicas
        refusal = None
        if in_sync < least:
            reason = f"{in_sync} brokers are in sync, fewer than {least} (minInSyncReplicas)"
            refusal = PutResult(PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH, reason=reason)
        self._commit.refuse_puts(refusal)
        self._commit.on_copied()
