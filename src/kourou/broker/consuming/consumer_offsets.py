"""Committed offsets of consumer groups by topic and queue, saved in `config/consumerOffset.json`.

The file has Java's format (integer keys unquoted, tab indent):

    dataVersion       counter of the changes written
    groupTopicMap     group -> topics; derived, ignored on reading
    offsetTable       "topic@group" -> {queue id: the next queue offset to consume}
    pullOffsetTable   the same form: the next queue offset to pull, which is ahead of the former
    kourouLogPositions  Kourou's own, positions of the log: the table has all offsets of pops whose
                      checkpoints lie below the first, and of revives whose messages lie below the
                      second; after a kill, later ones are found in the log

The offset of a queue is the one committed last. It may go back, by an administrator's reset or a
second member of the group that started from an older one.

An administrator's reset takes precedence over clients that have not learned of it: until the
group's next pull of the queue has returned the new offset, their commits are ignored
(`take_reset`). Pending resets are kept in memory only. After a crash before that pull, the
committed offset is the administrator's, and a client that is ahead may overwrite it.

Source: ConsumerOffsetManager.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from kourou.broker.config_saver import ConfigSaver, LogPositions, SavedFile, TextParts, join_parts
from kourou.broker.host_quotas import HostQuota
from kourou.clock import Clock
from kourou.protocol.data_version import DataVersion
from kourou.protocol.encoded_members import compact
from kourou.protocol.fastjson import loads
from kourou.protocol.json_records import from_json
from kourou.protocol.json_values import Json, as_integer, as_object, get_object
from kourou.protocol.offset_table import encode_offset_table_parts, try_decode_offsets
from kourou.remoting.log_rate import LogRate
from kourou.remoting.runtime import Offload
from kourou.store.state.config_file import BARE_KEYS_BYTES_MAX

log = logging.getLogger(__name__)

SEPARATOR: Final = "@"  # neither topics nor groups may contain it

GroupTopic = tuple[str, str]
"""(group, topic)."""


class OffsetKeys:
    """Keeps keys in order between saves: sorting 40,000 of them would block the loop for 20 ms."""

    def __init__(self) -> None:
        self._sorted: list[str] = []
        self._added: list[str] = []

    def add(self, key: GroupTopic) -> None:
        """Add a new key."""
        self._added.append(text_of(key))

    def reset(self, keys: Iterable[GroupTopic]) -> None:
        """Replace all keys."""
        self._sorted, self._added = sorted(map(text_of, keys)), []

    def sorted_keys(self) -> list[str]:
        """Return all keys in order; the list will not be changed."""
        if self._added:
            self._sorted = sorted(self._sorted + self._added)  # almost sorted: takes one pass
            self._added = []
        return self._sorted


def text_of(key: GroupTopic) -> str:
    """Return `topic@group`."""
    return f"{key[1]}{SEPARATOR}{key[0]}"


def key_of(text: str) -> GroupTopic:
    """Return the key for a `topic@group`."""
    topic, _, group = text.rpartition(SEPARATOR)
    return group, topic


FILE_NAME: Final = "config/consumerOffset.json"

Table = dict[GroupTopic, dict[int, int]]
"""(group, topic) -> queue id -> queue offset."""

PAIRS_MAX: Final = 500_000
"""Limit on pairs of group and topic with offsets; each takes about 1 KB."""

_NO_OFFSETS: Final[Mapping[int, int]] = {}

FOLLOWED_LAG_BYTES_MAX: Final = 4 * 1024 * 1024
"""Limit for the same distance in the file of a slave: it reads that part when it becomes master."""
POSITION_LAG_BYTES_MAX: Final = 256 * 1024 * 1024
"""The file is written, even if no offset has changed, when its position is this far behind."""

_PART_KEYS: Final = 1_000
_LOG_POSITIONS: Final = re.compile(rb'"kourouLogPositions":\[([0-9]{1,18}),([0-9]{1,18})\]')


class ConsumerOffsets:
    """Committed offsets of all groups. In memory; `persist` makes them durable.

    Attributes:
        loaded_positions: positions of the log in the file that was loaded; None without any.
        revived_position: returns the position of the log before which each revived message is
            counted in the offset of its revive queue.
    """

    def __init__(
        self,
        file: SavedFile,
        offload: Offload,
        clock: Clock,
        covered_by: LogPositions | None,
        quota: HostQuota | None = None,
        log_position: Callable[[], int] | None = None,
    ) -> None:
        """Load the file.

        Args:
            file: read now; written by `persist`.
            offload: runs the writes off the event loop.
            clock: gives the time of the data version.
            covered_by: with ASYNC_FLUSH, the log: the file must not be ahead of its durable part;
                None in sync mode, in which consumers see only synced messages.
            quota: limit on pairs of group and topic created by the clients of one host; by default
                the total limit.
            log_position: returns the position of the log below which all puts are reported as
                stored; None writes no `kourouLogPositions`.

        Raises:
            CorruptRecordError: neither the file nor its backup parses.
        """
        self._clock = clock
        self._quota = HostQuota(PAIRS_MAX) if quota is None else quota
        self._saver = ConfigSaver(file, self._take, offload, covered_by)
        self._set_back_rate = LogRate()  # two members on one queue cause many
        self._beyond_end_rate = LogRate()
        self._version = DataVersion()
        self._committed: Table = {}
        self._pulled: Table = {}
        self._resets: Table = {}
        self._popped: Table = {}  # offsets set by pops, until a member commits behind them
        self._log_position = log_position
        self._position = 0  # as saved last
        self._is_following = False
        text = file.load()
        if text is not None:
            self._version, self._committed, self._pulled = parse_consumer_offsets(text)
        self.loaded_positions = None if text is None else parse_log_positions(text)
        self._followed = self.loaded_positions  # of the master's table, on a slave
        self._followed_saved = self.loaded_positions
        self.revived_position: Callable[[], int] | None = None
        self._committed_keys, self._pulled_keys = OffsetKeys(), OffsetKeys()
        self._set_keys()

    def has_room(self, group: str, topic: str, host: str) -> bool:
        """Return whether a client of the host may commit offsets for the group and topic."""
        if (group, topic) in self._committed:
            return True
        return len(self._committed) < PAIRS_MAX and self._quota.has_room(host)

    def refusal(self, group: str, topic: str, host: str) -> str:
        """Return the reason why there is no room, and the remedy."""
        reason = self._quota.refusal(host)
        if len(self._committed) >= PAIRS_MAX:
            reason = f"there are {PAIRS_MAX} already; delete groups with their offsets"
        return f"group {group} cannot commit its first offset for topic {topic}: {reason}"

    def commit(
        self, group: str, topic: str, queue_id: int, queue_offset: int, host: str | None = None
    ) -> None:
        """Set the group's offset of the queue, forward or back."""
        offsets = self._committed.get((group, topic))
        if offsets is None:
            offsets = self._committed[group, topic] = {}
            self._committed_keys.add((group, topic))
            self._quota.add((group, topic), host)
        before = offsets.get(queue_id)
        if before == queue_offset:
            return
        if before is not None and queue_offset < before:
            suppressed = self._set_back_rate.take(self._clock.now_ms() / 1000)
            if suppressed is not None:
                log.info(
                    "consumer_offset.set_back group=%s topic=%s queue_id=%d from=%d to=%d "
                    "suppressed=%d",
                    group, topic, queue_id, before, queue_offset, suppressed,
                )  # fmt: skip
        offsets[queue_id] = queue_offset
        self._saver.changed()

    def commit_pulled(
        self, group: str, topic: str, queue_id: int, queue_offset: int, host: str
    ) -> None:
        """Commit for a member of `host` that pulls, unless the offset is behind that of pops."""
        if not self.is_behind_pops(group, topic, queue_id, queue_offset):
            self.commit(group, topic, queue_id, queue_offset, host)

    def commit_popped(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Set the group's offset after a pop."""
        self.commit(group, topic, queue_id, queue_offset)
        self._popped.setdefault((group, topic), {})[queue_id] = queue_offset

    def is_behind_pops(self, group: str, topic: str, queue_id: int, queue_offset: int) -> bool:
        """Return whether a member's commit would move back the offset that a pop has set.

        While a group changes between pull and pop, members of both modes read the same queues. A
        late commit of a pulling member must not have all messages popped again that others have
        popped meanwhile; what it has not consumed itself comes from their checkpoints. The first
        commit behind the pops ends this.
        """
        if not self._popped:
            return False
        offsets = self._popped.get((group, topic))
        popped = None if offsets is None else offsets.get(queue_id)
        if offsets is None or popped is None:
            return False
        if queue_offset < popped:
            return True
        del offsets[queue_id]
        if not offsets:
            del self._popped[group, topic]
        return False

    def commit_within(
        self, group: str, topic: str, queue_id: int, queue_offset: int, end: int, host: str
    ) -> bool:
        """Commit for a client of `host`, unless the offset is beyond the end of the queue.

        The offset is not committed either if there is no room for a new pair of group and topic.
        An offset beyond the end is from a topic that was deleted, or from messages lost in a crash:
        with it, the group would skip the messages that get these offsets later.

        Returns:
            Whether it was committed.
        """
        if queue_offset > end:
            suppressed = self._beyond_end_rate.take(self._clock.now_ms() / 1000)
            if suppressed is not None:
                log.warning(
                    "consumer_offset.beyond_end group=%s topic=%s queue_id=%d offset=%d end=%d "
                    "suppressed=%d",
                    group, topic, queue_id, queue_offset, end, suppressed,
                )  # fmt: skip
            return False
        if not self.has_room(group, topic, host):
            return False
        self.commit(group, topic, queue_id, queue_offset, host)
        return True

    def resume_offset(self, group: str, topic: str, queue_id: int, bounds: tuple[int, int]) -> int:
        """Return the offset for a member whose own offset is beyond the end of the queue.

        The committed offset was set back with the end of the queue, or deleted with the topic. In
        the latter case the group begins at the start of the new topic of the same name.

        Args:
            group: the group.
            topic: the topic.
            queue_id: the queue.
            bounds: the queue's first offset, and the one after its last.
        """
        low, high = bounds
        committed = self.query(group, topic, queue_id)
        return low if committed is None or committed > high else max(low, committed)

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the group's committed offset of the queue; None if there is none."""
        return self._committed.get((group, topic), {}).get(queue_id)

    def of_queues(self, group: str, topic: str) -> Mapping[int, int]:
        """Return the group's committed offsets of the topic, by queue id; not a copy."""
        return self._committed.get((group, topic), _NO_OFFSETS)

    @property
    def has_resets(self) -> bool:
        """Whether a reset of any queue is pending."""
        return bool(self._resets)

    def reset(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Set the group's offset, and ignore its members' commits until they learn of it."""
        self.commit(group, topic, queue_id, queue_offset)
        self._popped.get((group, topic), {}).pop(queue_id, None)
        self._resets.setdefault((group, topic), {})[queue_id] = queue_offset
        log.info(
            "consumer_offset.reset group=%s topic=%s queue_id=%d to=%d",
            group, topic, queue_id, queue_offset,
        )  # fmt: skip

    def is_reset(self, group: str, topic: str, queue_id: int) -> bool:
        """Return whether a reset is pending: set, but not yet returned to a pull of the group."""
        return bool(self._resets) and queue_id in self._resets.get((group, topic), ())

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset of a pending reset to a pull of the queue, and end it; None for none.

        From then on commits of the group's members are accepted again.
        """
        if not self._resets:
            return None
        resets = self._resets.get((group, topic))
        if resets is None:
            return None
        queue_offset = resets.pop(queue_id, None)
        if not resets:
            del self._resets[group, topic]
        return queue_offset

    def note_pulled(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Note the group's next offset to pull; it is used by statistics only."""
        offsets = self._pulled.get((group, topic))
        if offsets is None:
            if len(self._pulled) >= PAIRS_MAX:
                return
            offsets = self._pulled[group, topic] = {}
            self._pulled_keys.add((group, topic))
        if offsets.get(queue_id) != queue_offset:
            offsets[queue_id] = queue_offset
            self._saver.changed()

    def pulled(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the group's next offset to pull from the queue; None if it never pulled."""
        return self._pulled.get((group, topic), {}).get(queue_id)

    def topics_of(self, group: str) -> list[str]:
        """Return the topics for which the group has committed offsets, sorted."""
        return sorted(topic for owner, topic in self._committed if owner == group)

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have committed offsets for the topic, sorted."""
        return sorted(group for group, name in self._committed if name == topic)

    def of_topic(self, group: str, topic: str) -> dict[int, int]:
        """Return the group's committed offsets of the topic, by queue id."""
        return dict(self._committed.get((group, topic), {}))

    def clone(self, source: str, destination: str, topic: str) -> bool:
        """Replace a group's offsets of the topic by those of another group.

        A pending reset of the group is dropped too: its next pull would apply it.

        Returns:
            Whether the source has any; if not, nothing changed.
        """
        offsets = self._committed.get((source, topic))
        if not offsets:
            return False
        if (destination, topic) not in self._committed:
            self._committed_keys.add((destination, topic))
        self._committed[destination, topic] = dict(offsets)
        self._resets.pop((destination, topic), None)
        self._popped.pop((destination, topic), None)
        self._saver.changed()
        return True

    def text(
        self, log_positions: tuple[int, int] | None = None, *, with_pulled: bool = True
    ) -> TextParts:
        """Yield the file's text; each part has the offsets at the time it is built."""
        group_topics: dict[str, list[str]] = {}
        committed = self._committed_keys.sorted_keys()
        pulled = self._pulled_keys.sorted_keys() if with_pulled else []
        for number, key in enumerate(committed):
            if not number % _PART_KEYS:
                yield b""
            group, topic = key_of(key)
            group_topics.setdefault(group, []).append(topic)
        for topics in group_topics.values():
            topics.sort()  # almost sorted: the keys compare `topic@group` with the separator
        yield from encode_offset_table_parts(
            self._version,
            dict(sorted(group_topics.items())),
            (committed, lambda key: self._committed.get(key_of(key))),
            (pulled, lambda key: self._pulled.get(key_of(key))),
            log_positions,
        )

    async def body(self, *, with_positions: bool = False) -> bytes:
        """Return the body of all offsets, built in steps that let other tasks run.

        With `kourouLogPositions` if that is asked for; Java's brokers have no such member. Without
        the pulled offsets: replicas need none, and brokers of RocketMQ 5.5 cannot read them
        ("not support unquoted name").
        """
        positions = self._log_positions() if with_positions else None
        return compact(await join_parts(self.text(positions, with_pulled=False)))

    def begin_following(self) -> None:
        """Note that this is the table of a slave: it is as old as what was copied last."""
        self._is_following = True

    def follow(
        self,
        offsets: Mapping[str, Mapping[int, int]],
        positions: tuple[int, int] | None,
        topic_begin: Callable[[str], int],
        version: DataVersion | None = None,
    ) -> None:
        """Replace the committed offsets by those of the master.

        Args:
            offsets: `topic@group` -> queue id -> offset.
            positions: `kourouLogPositions` of the master's table; None if it is Java's.
            topic_begin: position of the log below which records belong to a deleted topic of this
                name. Offsets that may be older are left out.
            version: of the master's table. A Java master that returns takes a table back only if
                its version is not older than its own.
        """
        if version is not None and version.counter > self._version.counter:
            self._version = version
        self._followed, saved = positions, self._followed_saved
        if positions is not None and (
            saved is None or positions[0] - saved[0] > FOLLOWED_LAG_BYTES_MAX
        ):
            self._saver.changed()
        end = None if positions is None else positions[0]
        for text, of_queues in offsets.items():
            group, topic = key_of(text)
            if end is None or topic_begin(topic) < end or not topic_begin(topic):
                for queue_id, queue_offset in of_queues.items():
                    self.commit(group, topic, queue_id, queue_offset)
        if end is not None:
            self._remove(lambda key: text_of(key) not in offsets)

    def advance_to(
        self, offsets: Mapping[str, Mapping[int, int]], end_of: Callable[[str, int], int]
    ) -> None:
        """Take the offsets of a slave that has acted for this master, where they are larger.

        Args:
            offsets: `topic@group` -> queue id -> offset.
            end_of: returns the end of a queue, beyond which no offset is taken.
        """
        for text, of_queues in offsets.items():
            group, topic = key_of(text)
            committed = self._committed.get((group, topic), {})
            for queue_id, queue_offset in of_queues.items():
                within = min(queue_offset, end_of(topic, queue_id))
                if within > committed.get(queue_id, -1):
                    self.commit(group, topic, queue_id, within)

    def topics_by_group(self) -> dict[str, list[str]]:
        """Return the topics for which each group has committed offsets, sorted."""
        topics: dict[str, list[str]] = {}
        for group, topic in sorted(self._committed):
            topics.setdefault(group, []).append(topic)
        return topics

    def groups(self) -> set[str]:
        """Return the groups that have committed offsets."""
        return {group for group, _ in self._committed}

    def topics(self) -> set[str]:
        """Return the topics for which a group has committed offsets or pulled."""
        return {topic for table in (self._committed, self._pulled) for _, topic in table}

    def remove_groups(self, groups: Collection[str]) -> None:
        """Remove all offsets of the groups, in one pass."""
        self._remove(lambda key: key[0] in groups)

    def remove_group(self, group: str) -> None:
        """Remove all offsets of the group."""
        self._remove(lambda key: key[0] == group)

    def remove_topic(self, topic: str) -> None:
        """Remove all offsets of the topic."""
        self._remove(lambda key: key[1] == topic)

    def restart_deleted(self, topic_begin: Callable[[str], int]) -> None:
        """Set the offsets of topics that were deleted since the file was written to 0.

        Must be called once at a start, before `clamp`. With ASYNC_FLUSH, the file may still have
        offsets of a deleted topic when its successor already has messages. The groups then begin at
        the start of the successor; without any offset they could begin at its end.

        Args:
            topic_begin: returns the position of the log below which records belong to a deleted
                topic of this name; 0 if there was none.
        """
        if self.loaded_positions is None:
            return  # written by Java, which deletes the offsets itself
        position, _ = self.loaded_positions
        for table in (self._committed, self._pulled):
            for (group, topic), offsets in table.items():
                begin = topic_begin(topic)
                # Equal if no record was stored in between; later offsets in the file are then 0.
                if begin and position <= begin and any(offsets.values()):
                    log.info(
                        "consumer_offset.restarted group=%s topic=%s from=%s", group, topic, offsets
                    )
                    offsets.update(dict.fromkeys(offsets, 0))
                    self._saver.changed()

    def clamp(self, max_offset: Callable[[str, int], int]) -> int:
        """Set back offsets that are beyond the end of their queue; return their number.

        Must be called once at a start: after a crash that lost the unsynced end of the log, a group
        must not skip the messages that will get these offsets.

        Args:
            max_offset: returns the end of a queue by topic and queue id; 0 for a missing queue.
        """
        count = 0
        for table in (self._committed, self._pulled):
            for (group, topic), offsets in table.items():
                for queue_id, queue_offset in offsets.items():
                    end = max_offset(topic, queue_id)
                    if queue_offset > end:
                        log.warning(
                            "consumer_offset.clamped group=%s topic=%s queue_id=%d from=%d to=%d",
                            group, topic, queue_id, queue_offset, end,
                        )  # fmt: skip
                        offsets[queue_id] = end
                        count += 1
        if count:
            self._saver.changed()
        return count

    async def persist(self) -> bool:
        """Write the file if something changed; see `ConfigSaver.save`.

        Raises:
            OSError: the file could not be written; it is as it was.
        """
        position = self._log_position
        if position is not None and position() - self._position > POSITION_LAG_BYTES_MAX:
            self._saver.changed()  # a start after a kill reads the log from the saved position
        return await self._saver.save()

    def changed(self) -> None:
        """Have the next `persist` write the file, because its positions of the log are outdated."""
        self._saver.changed()

    async def save_position(self) -> None:
        """Write the file although nothing has changed, so that it has the position of the log.

        Raises:
            OSError: as `persist`.
        """
        self.changed()
        await self._saver.save()

    def _remove(self, is_removed: Callable[[tuple[str, str]], bool]) -> None:
        for table in (self._committed, self._pulled, self._resets, self._popped):
            removed = [key for key in table if is_removed(key)]
            for key in removed:
                del table[key]
                self._quota.remove(key)
            if removed:
                self._set_keys()
                self._saver.changed()

    def _set_keys(self) -> None:
        self._committed_keys.reset(self._committed)
        self._pulled_keys.reset(self._pulled)

    def _take(self) -> TextParts:
        self._version = self._version.next(self._clock.now_ms())
        positions = self._log_positions()
        if self._log_position is not None:
            self._position = self._log_position()
        if self._is_following:
            self._followed_saved = positions
        return self.text(positions)

    def _log_positions(self) -> tuple[int, int] | None:
        """Return `kourouLogPositions` of the table as it is; None if they are not known."""
        if self._is_following:
            return self._followed
        if self._log_position is None:
            return None
        position = self._log_position()
        revived = position if self.revived_position is None else self.revived_position()
        return position, min(position, revived)


def parse_consumer_offsets(text: bytes) -> tuple[DataVersion, Table, Table]:
    """Decode a `consumerOffset.json`: version, committed and pulled offsets.

    Raises:
        MalformedBodyError: it is not such a file.
    """
    plain = try_decode_offsets(text)
    if plain is not None:
        version = plain.data_version
        return (
            DataVersion(version.counter, version.state_version, version.timestamp),
            {key_of(key): offsets for key, offsets in plain.offset_table.items() if _is_pair(key)},
            {key_of(key): at for key, at in plain.pull_offset_table.items() if _is_pair(key)},
        )
    content = as_object(loads(text, bare_keys_bytes_max=BARE_KEYS_BYTES_MAX), FILE_NAME)
    return (
        from_json(DataVersion, content.get("dataVersion"), "dataVersion"),
        _table_of(content, "offsetTable"),
        _table_of(content, "pullOffsetTable"),
    )


def parse_log_positions(text: bytes) -> tuple[int, int] | None:
    """Return the positions of the log in a `consumerOffset.json`; None if Java wrote it."""
    found = _LOG_POSITIONS.search(text)
    return (int(found[1]), int(found[2])) if found else None


def _table_of(content: Json, name: str) -> Table:
    """Return one table of the file, without keys that do not consist of a topic and a group."""
    return {
        key_of(key): {
            as_integer(queue_id, name): as_integer(queue_offset, name)
            for queue_id, queue_offset in as_object(offsets, name).items()
        }
        for key, offsets in get_object(content, name).items()
        if _is_pair(key)
    }


def _is_pair(text: str) -> bool:
    """Return whether the text consists of a topic and a group."""
    return text.count(SEPARATOR) == 1
