"""JSON bodies of users and access control (3001 to 3010).

Source: UserInfo.java, AclInfo.java.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UserInfo:
    """A user; None leaves a member as it is.

    Attributes:
        password: as clear text, also in answers.
        user_type: Super or Normal.
        user_status: enable or disable.
    """

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None


@dataclass(frozen=True, slots=True)
class PolicyEntryInfo:
    """What may be done to one resource.

    Attributes:
        resource: a kind and a name, such as `Topic:orders` or `Group:billing*`.
        actions: of All, Any, Pub, Sub, Create, Update, Delete, Get and List.
        source_ips: addresses or networks; None for any.
        decision: Allow or Deny.
    """

    resource: str | None = None
    actions: tuple[str, ...] | None = None
    source_ips: tuple[str, ...] | None = None
    decision: str | None = None


@dataclass(frozen=True, slots=True)
class PolicyInfo:
    """Entries of one kind: `policy_type` is Custom or Default; None is Custom."""

    policy_type: str | None = None
    entries: tuple[PolicyEntryInfo, ...] | None = None


@dataclass(frozen=True, slots=True)
class AclInfo:
    """What one subject, `User:name`, may do."""

    subject: str | None = None
    policies: tuple[PolicyInfo, ...] | None = None
