"""Hooks around a client's requests, to sign, count or change them.

Source: RPCHook.java.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kourou.protocol.command import RemotingCommand


class RequestHook(Protocol):
    """Called for each request and each response. Runs on the event loop; must not block.

    An exception that it raises fails the request and propagates to the request's caller.
    """

    def before_request(self, address: str, command: RemotingCommand) -> None:
        """Called before a request is sent to `address`; may change the request's fields."""

    def after_response(
        self, address: str, command: RemotingCommand, answer: RemotingCommand
    ) -> None:
        """Called with the response, whatever its code; not called if there is none."""


class RequestHooks:
    """The hooks of one client: `before_request` in their order, `after_response` in reverse."""

    def __init__(self, hooks: Sequence[RequestHook] = ()) -> None:
        self._hooks = tuple(hooks)

    def __bool__(self) -> bool:
        """Return whether there are any hooks."""
        return bool(self._hooks)

    def before(self, address: str, command: RemotingCommand) -> None:
        """Call `before_request` of all hooks in order."""
        for hook in self._hooks:
            hook.before_request(address, command)

    def after(self, address: str, command: RemotingCommand, answer: RemotingCommand) -> None:
        """Call `after_response` of all hooks in reverse order."""
        for hook in reversed(self._hooks):
            hook.after_response(address, command, answer)
