"""AdminClient: single messages."""

from __future__ import annotations

from kourou.client.admin_calls import AdminCalls


class MessageAdmin(AdminCalls):
    """Finds messages."""
