"""State of the tries of one message or batch."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from kourou.client.calls_send import Outgoing
from kourou.client.retrying import Deadline
from kourou.client.send_receipt import SendReceipt
from kourou.client.sending.queue_choice import QueueChoice
from kourou.errors import KourouError
from kourou.model.queue import MessageQueue

if TYPE_CHECKING:
    from kourou.client.sending.sender import Sender


class Tries:
    """State shared by the tries of one message or batch.

    It is an object with slots, because closures over a dozen variables would cost more.
    """

    __slots__ = (
        "choice",
        "deadline",
        "failed_broker",
        "is_retry",
        "last",
        "number",
        "outgoing",
        "sender",
        "target",
    )

    def __init__(
        self, sender: Sender, outgoing: Outgoing, deadline: Deadline, choice: QueueChoice
    ) -> None:
        self.sender = sender
        self.outgoing = outgoing
        self.deadline = deadline
        self.choice = choice
        self.failed_broker: str | None = None
        self.target: MessageQueue | None = None  # of the next try, if already chosen
        self.is_retry = False  # the server has answered an earlier try with GO_AWAY
        self.last: KourouError | None = None
        self.number = 0

    def attempt(self) -> Awaitable[list[SendReceipt]]:
        return self.sender.attempt(self)

    def on_failure(self, error: KourouError) -> None:
        self.sender.on_failure(self, error)
