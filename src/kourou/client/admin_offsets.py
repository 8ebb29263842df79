"""AdminClient: how far consumer groups are, and where they go on."""

from __future__ import annotations

from kourou.client.admin_calls import AdminCalls


class OffsetAdmin(AdminCalls):
    """Tells and changes where consumer groups stand."""
