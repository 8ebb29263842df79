"""AdminClient: the producers and consumers that are connected."""

from __future__ import annotations

from kourou.client.admin_calls import AdminCalls


class ClientAdmin(AdminCalls):
    """Describes connected clients."""
