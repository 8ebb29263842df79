"""The groups that consumers of this process have started, each once."""

from __future__ import annotations

from typing import Final
from weakref import WeakValueDictionary

from kourou.errors import InvalidGroupError


class ConsumerGroups:
    """The groups that push consumers of this process have started.

    A broker tells the members of a group apart by client id. Two with one id would each take the
    same share of the queues, so RocketMQ refuses the second, and so does this table. Its key has
    the instance name: whoever gives each its own may have several in one process.
    """

    def __init__(self) -> None:
        # Weak: a consumer that was dropped without being closed frees its group.
        self._owners: WeakValueDictionary[tuple[object, ...], object] = WeakValueDictionary()

    def acquire(
        self, owner: object, group: str, namesrv: tuple[str, ...], instance_name: str | None
    ) -> None:
        """Note that `owner` consumes as `group`.

        Raises:
            InvalidGroupError: another one does, at the same name servers and with the same name.
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
        """Forget what `acquire` noted, if `owner` holds it."""
        key = (group, namesrv, instance_name)
        if self._owners.get(key) is owner:
            del self._owners[key]


consumer_groups: Final = ConsumerGroups()
"""The one table of this process."""
