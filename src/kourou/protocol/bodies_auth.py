"""JSON bodies of users and access control (3001 to 3010).

Source: UserInfo.java, AclInfo.java.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UserInfo:
    """A user; in an update, a member that is None is not changed.

    Attributes:
        password: in clear text, also in responses.
        user_type: Super or Normal.
        user_status: enable or disable.
    """

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None


@dataclass(frozen=True, slots=True)
class PolicyEntryInfo:
    """Access rights to one resource.

    Attributes:
        resource: a type and a name, such as `Topic:orders` or `Group:billing*`.
        actions: among All, Any, Pub, Sub, Create, Update, Delete, Get and List.
        source_ips: addresses or networks; None for any.
        decision: Allow or Deny.
    """

    resource: str | None = None
    actions: tuple[str, ...] | None = None
    source_ips: tuple[str, ...] | None = None
    decision: str | None = None


@dataclass(frozen=True, slots=True)
class PolicyInfo:
    """Policy entries of one type: `policy_type` is Custom or Default; None means Custom."""

    policy_type: str | None = None
    entries: tuple[PolicyEntryInfo, ...] | None = None


@dataclass(frozen=True, slots=True)
class AclInfo:
    """The access rights of one subject, `User:name`."""

    subject: str | None = None
    policies: tuple[PolicyInfo, ...] | None = None
