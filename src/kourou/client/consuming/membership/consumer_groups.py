"""Registry of the consumer groups in use in this process."""

from __future__ import annotations

from typing import Final
from weakref import WeakValueDictionary

from kourou.errors import InvalidGroupError


class ConsumerGroups:
    """The groups of this process's push consumers.

    A broker distinguishes the members of a group by client id. Two members with one id would be
    assigned the same queues, so RocketMQ refuses the second, and so does this registry. The
    instance name is part of the key: several members of one group may run in a process if each has
    its own.
    """

    def __init__(self) -> None:
        # Weak: a consumer that is garbage collected without being closed frees its group.
        self._owners: WeakValueDictionary[tuple[object, ...], object] = WeakValueDictionary()

    def acquire(
        self, owner: object, group: str, namesrv: tuple[str, ...], instance_name: str | None
    ) -> None:
        """Register `owner` as the consumer of `group`.

        Raises:
            InvalidGroupError: another consumer is registered with the same group, name servers and
                instance name.
        """
        if self._owners.setdefault((group, namesrv, instance_name), owner) is not owner:
            raise InvalidGroupError(
                f"The consumer group[{group}] has been created before, specify another name "
                "please: close the other consumer of this process, or give each its own "
                "instance_name"
            )

    def release(
        self, owner: object, group: str, namesrv: tuple[str, ...], instance_name: str | None
    ) -> None:
        """Remove the registration if it belongs to `owner`."""
        key = (group, namesrv, instance_name)
        if self._owners.get(key) is owner:
            del self._owners[key]


consumer_groups: Final = ConsumerGroups()
"""The registry of this process."""
