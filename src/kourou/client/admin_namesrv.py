"""AdminClient: name servers."""

from __future__ import annotations

from kourou.client.admin_calls import AdminCalls


class NamesrvAdmin(AdminCalls):
    """Configures name servers."""
