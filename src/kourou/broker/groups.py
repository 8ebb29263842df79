"""Table of consumer groups and their settings: `config/subscriptionGroup.json`.

A group is created by request, or on its first use when `auto_create_subscription_group` is on. The
table also holds groups without connected members; the members are in `clients.py`.

The file has Java's text format: `dataVersion`, `forbiddenTable` (group -> topic -> permission bits
that the group lacks in the topic) and `subscriptionGroupTable` (name -> group). Kourou's own is
`kourouDeletedGroups` (group -> end of the log when it was deleted): pops from before that are not
those of a group that was created again with the same name.

Source: SubscriptionGroupManager.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kourou.broker.change_log import ChangeLog
from kourou.broker.config_saver import ConfigSaver, SavedFile, TextParts
from kourou.broker.host_quotas import HostQuota
from kourou.clock import Clock
from kourou.errors import InvalidGroupError
from kourou.model.group import SubscriptionGroup
from kourou.model.topic import PERM_READ, TOOLS_GROUP, check_group, check_topic, is_system_group
from kourou.protocol.data_version import DataVersion
from kourou.protocol.groups import (
    GroupTableEncoder,
    SubscriptionGroupTable,
    decode_subscription_group_table,
)
from kourou.remoting.log_rate import LogRate
from kourou.remoting.runtime import Offload

log = logging.getLogger(__name__)

FILE_NAME: Final = "config/subscriptionGroup.json"


GROUPS_MAX: Final = 100_000
"""Most groups. Clients create groups by using them, and the groups stay."""


class Groups:
    """All consumer groups. Held in memory; `persist` makes changes durable.

    Attributes:
        auto_create: whether the first use of a group creates it; may change at any time.
        on_group_changed: called with the name of each group that was changed or deleted.
        change_log: copies the changes to replicas; None without a controller, and on a slave.
    """

    def __init__(
        self,
        file: SavedFile,
        offload: Offload,
        clock: Clock,
        *,
        auto_create: bool = True,
        quota: HostQuota | None = None,
        log_bounds: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        """Load the file, and add the group of the admin tools.

        Args:
            file: read now; written by `persist`.
            offload: runs the writes off the event loop.
            clock: for the time of the data version.
            auto_create: whether the first use of a group creates it.
            quota: quota of groups that clients of one host may create; None: up to `GROUPS_MAX`.
            log_bounds: returns the first position of the log, and its end with all appends; None
                notes no deletions.

        Raises:
            CorruptRecordError: neither the file nor its backup parses.
        """
        self._clock = clock
        self._quota = HostQuota(GROUPS_MAX) if quota is None else quota
        self.auto_create = auto_create
        self.on_group_changed: Callable[[str], None] = lambda _name: None
        self.change_log: ChangeLog | None = None
        self._refusals = LogRate()
        self._saver = ConfigSaver(file, self._encode, offload)
        text = file.load()
        table = SubscriptionGroupTable() if text is None else decode_subscription_group_table(text)
        self._version = table.data_version
        self._groups = dict(table.groups)
        self._unsaved: set[str] = set()
        self._forbidden = {group: dict(topics) for group, topics in table.forbidden.items()}
        self._groups.setdefault(TOOLS_GROUP, SubscriptionGroup(TOOLS_GROUP))
        self._log_bounds = log_bounds
        first = 0 if log_bounds is None else log_bounds()[0]
        # Of pops before the first position of the log, no message is left.
        self._deleted = {name: end for name, end in table.deleted.items() if end > first}
        self._text = GroupTableEncoder()
        for group in self._groups.values():
            self._text.put(group)

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def data_version(self) -> DataVersion:
        """Version that counts the changes since the store was created."""
        return self._version

    def body(self, names: Sequence[str] | None = None, *, with_deleted: bool = False) -> bytes:
        """Return the encoded table of all groups, or of `names`, with the version of the table.

        With the deletions of groups, for replicas.
        """
        forbidden: dict[str, dict[str, int]] = self._forbidden
        if names is not None:
            forbidden = {name: forbidden[name] for name in names if name in forbidden}
        deleted = self._deleted if with_deleted else None
        return self._text.encode_body(self._version, forbidden, names, deleted)

    def names(self) -> list[str]:
        """Return the names of all groups, in the order of creation."""
        return list(self._groups)

    def get(self, name: str) -> SubscriptionGroup | None:
        """Return the group; None if it does not exist."""
        return self._groups.get(name)

    def find(self, name: str, host: str | None = None) -> SubscriptionGroup | None:
        """Return the group, or the one that its first use would create; None if that is refused.

        Nothing is created here, because the request may still be refused for another reason.

        Args:
            name: of the group.
            host: of the client that uses the group; None for administrators.
        """
        existing = self._groups.get(name)
        if existing is not None:
            return existing
        reason = self._refusal(name, host)
        if reason is None:
            return SubscriptionGroup(name)
        if self._quota.has_room(host):
            log.debug("group.refused reason=%s", reason)
            return None
        suppressed = self._refusals.take(self._clock.now_ms() / 1000)
        if suppressed is not None:
            log.warning("group.refused name=%s reason=%s suppressed=%d", name, reason, suppressed)
        return None

    def missing_reason(self, name: str, host: str | None = None) -> str:
        """Return the error text for a client when `find` returned None, with the remedy."""
        return f"consumer group {name} does not exist: {self._refusal(name, host)}"

    def get_or_create(self, name: str, host: str | None = None) -> SubscriptionGroup | None:
        """Return the group, created now if it is missing; None if creation is refused.

        `host` is as for `find`. A created group is in the file after the next `persist`. If the
        broker crashes before that, the next use of the group creates it again.
        """
        group = self.find(name, host)
        if group is not None and name not in self._groups:
            self.put(group)
            self._quota.add(name, host)
            log.info("group.created name=%s", name)
        return group

    def put(self, group: SubscriptionGroup) -> None:
        """Add the group, or replace it. Putting an equal group again changes nothing.

        Raises:
            InvalidGroupError: the name is invalid, or the group is new and `GROUPS_MAX` exist.
        """
        name = group.group_name
        self._check_new(name)
        before = self._groups.get(name)
        if before != group:
            self._groups[name] = group
            self._unsaved.add(name)
            self._text.put(group)
            self._changed(name)
            if before is not None:
                self.on_group_changed(name)

    def delete(self, name: str) -> bool:
        """Delete the group and its read bans, and return whether it existed."""
        if self._groups.pop(name, None) is None:
            return False
        self._unsaved.discard(name)
        self._text.remove(name)
        self._quota.remove(name)
        self._forbidden.pop(name, None)
        self._note_deletion(name)
        self._changed(name)
        self.on_group_changed(name)
        log.info("group.deleted name=%s", name)
        return True

    def state_of(self, name: str) -> tuple[SubscriptionGroup | None, int, dict[str, int]]:
        """Return the group, the end of the log at its last deletion, and its read bans."""
        return self._groups.get(name), self._deleted.get(name, 0), self._forbidden.get(name, {})

    def follow(
        self,
        name: str,
        group: SubscriptionGroup | None,
        deleted_at: int,
        forbidden: Mapping[str, int],
    ) -> bool:
        """Take the state of a group of the master, as its `state_of` returned it.

        Returns:
            Whether the master has deleted a group of this name since the last known state.

        Raises:
            InvalidGroupError: as `put`.
        """
        is_deleted = deleted_at > self._deleted.get(name, 0)
        if is_deleted or group is None:
            self.delete(name)
        if is_deleted:
            self._note_deletion(name, deleted_at)
            self._changed(name)
        if group is not None:
            self.put(group)
        self._set_forbidden(name, forbidden)
        return is_deleted

    def follow_deletions(self, deleted: Mapping[str, int]) -> None:
        """Take the deletions of the master: one of its own that a failover has undone is none."""
        self._deleted = dict(deleted)
        self._saver.changed()

    def _set_forbidden(self, group: str, topics: Mapping[str, int]) -> None:
        if dict(topics) == self._forbidden.get(group, {}):
            return
        self._forbidden.pop(group, None)
        if topics:
            self._forbidden[group] = dict(topics)
        self._changed(group)

    def _note_deletion(self, name: str, log_end: int | None = None) -> None:
        if self._log_bounds is None:
            return
        self._deleted.pop(name, None)
        self._deleted[name] = self._log_bounds()[1] if log_end is None else log_end
        if len(self._deleted) > GROUPS_MAX:
            del self._deleted[next(iter(self._deleted))]

    def was_deleted_after(self, name: str, position: int | None) -> bool:
        """Return whether a group of this name was deleted after the log had this end.

        It may exist again. False if the position is not known.
        """
        return position is not None and position < self._deleted.get(name, 0)

    def set_read_forbidden(self, group: str, topic: str, *, is_forbidden: bool) -> None:
        """Forbid the group to read the topic, or allow it again. Neither needs to exist yet.

        Raises:
            InvalidGroupError: the group's name is invalid, or there are `GROUPS_MAX` bans already.
            InvalidTopicError: the topic's name is invalid.
        """
        check_group(group)
        check_topic(topic)
        topics = dict(self._forbidden.get(group, {}))
        before = topics.get(topic, 0)
        after = before | PERM_READ if is_forbidden else before & ~PERM_READ
        if after == before:
            return
        if is_forbidden and sum(map(len, self._forbidden.values())) >= GROUPS_MAX:
            raise InvalidGroupError(
                f"groups are forbidden to read {GROUPS_MAX} topics, which is the limit; allow some"
            )
        topics[topic] = after
        if not after:
            del topics[topic]
        if topics:
            self._forbidden[group] = topics
        else:
            self._forbidden.pop(group, None)
        self._changed(group)
        log.info("group.read_set group=%s topic=%s is_forbidden=%s", group, topic, is_forbidden)

    def has_forbidden_topics(self, group: str) -> bool:
        """Return whether the group is forbidden to read at least one topic."""
        return group in self._forbidden

    def is_read_forbidden(self, group: str, topic: str) -> bool:
        """Return whether the group is forbidden to read this topic."""
        return self._forbidden.get(group, {}).get(topic, 0) & PERM_READ != 0

    async def persist(self) -> None:
        """Write the file if the table changed. On return all earlier changes are durable.

        With a `change_log` the in-sync replicas have them too.

        Raises:
            OSError: the file could not be written; it is unchanged.
            ChangeNotCopiedError: not all replicas have the changes; an OSError as well.
        """
        saved = set(self._unsaved)
        await self._saver.save()
        if self.change_log is not None:
            await self.change_log.flush()
        self._unsaved -= saved

    def is_saved(self, name: str) -> bool:
        """Return whether the group is as durable as `persist` makes it."""
        return name in self._groups and name not in self._unsaved

    def _refusal(self, name: str, host: str | None) -> str | None:
        """Return why a client of the host cannot create the group by using it; None if it can."""
        if not self.auto_create and not is_system_group(name):
            return "create it, or switch autoCreateSubscriptionGroup on"
        try:
            self._check_new(name)
        except InvalidGroupError as error:
            return str(error)
        return None if self._quota.has_room(host) else self._quota.refusal(host)

    def _check_new(self, name: str) -> None:
        """Check the name and, for a new group, the limit of groups."""
        check_group(name)
        if name not in self._groups and len(self._groups) >= GROUPS_MAX:
            raise InvalidGroupError(
                f"group {name} cannot be created: {GROUPS_MAX} groups exist, which is the limit; "
                "delete some"
            )

    def _encode(self) -> TextParts:
        # One part is enough: the text of each group is encoded already.
        return (self._text.encode(self._version, self._forbidden, self._deleted),)

    def _changed(self, name: str) -> None:
        if self.change_log is not None:
            self.change_log.note_group(name)
        self._version = self._version.next(self._clock.now_ms())
        self._saver.changed()
