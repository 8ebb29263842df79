"""Hooks of a client around its requests: to sign, count or change them.

Source: RPCHook.java.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kourou.protocol.command import RemotingCommand


class RequestHook(Protocol):
    """Sees each request that leaves, and each answer. Called on the event loop; must not block.

    What it raises ends the request, and reaches whoever made it.
    """

    def before_request(self, address: str, command: RemotingCommand) -> None:
        """Called before a request leaves for `address`; it may change the request's fields."""

    def after_response(
        self, address: str, command: RemotingCommand, answer: RemotingCommand
    ) -> None:
        """Called with the answer, whatever its code; not where none comes."""


class RequestHooks:
    """The hooks of one client: `before_request` in their order, `after_response` in reverse."""

    def __init__(self, hooks: Sequence[RequestHook] = ()) -> None:
        self._hooks = tuple(hooks)

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._hooks)

    def before(self, address: str, command: RemotingCommand) -> None:
        """Call all."""
        for hook in self._hooks:
            hook.before_request(address, command)

    def after(self, address: str, command: RemotingCommand, answer: RemotingCommand) -> None:
        """Call all."""
        for hook in reversed(self._hooks):
            hook.after_response(address, command, answer)
