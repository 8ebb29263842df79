"""Headers for the name server's key-value configuration: codes 100, 101, 102 and 219.

Source: PutKVConfigRequestHeader.java, GetKVConfigRequestHeader.java,
GetKVConfigResponseHeader.java, DeleteKVConfigRequestHeader.java,
GetKVListByNamespaceRequestHeader.java.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class PutKVConfigRequestHeader:
    """PUT_KV_CONFIG (100); a missing namespace or key is answered with a specific remark."""

    namespace: str | None = None
    key: str | None = None
    value: str | None = None


@dataclass(slots=True)
class GetKVConfigRequestHeader:
    """GET_KV_CONFIG (101)."""

    namespace: str
    key: str


@dataclass(slots=True)
class GetKVConfigResponseHeader:
    """The value, if the key exists."""

    value: str | None = None


@dataclass(slots=True)
class DeleteKVConfigRequestHeader:
    """DELETE_KV_CONFIG (102)."""

    namespace: str
    key: str


@dataclass(slots=True)
class GetKVListByNamespaceRequestHeader:
    """GET_KVLIST_BY_NAMESPACE (219); has a response body."""

    namespace: str
