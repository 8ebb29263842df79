"""Headers for users and access control: codes 3001 to 3010.

Source: the header classes of the same names in org.apache.rocketmq.remoting.protocol.header.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class CreateUserRequestHeader:
    """AUTH_CREATE_USER (3001); the body is the user."""

    username: str | None = None


@dataclass(slots=True)
class UpdateUserRequestHeader:
    """AUTH_UPDATE_USER (3002); the body contains the changed members."""

    username: str | None = None


@dataclass(slots=True)
class DeleteUserRequestHeader:
    """AUTH_DELETE_USER (3003)."""

    username: str | None = None


@dataclass(slots=True)
class GetUserRequestHeader:
    """AUTH_GET_USER (3004); the response body is empty for an unknown user."""

    username: str | None = None


@dataclass(slots=True)
class ListUsersRequestHeader:
    """AUTH_LIST_USER (3005): the users whose names contain `filter`; has a response body."""

    filter: str | None = None


@dataclass(slots=True)
class CreateAclRequestHeader:
    """AUTH_CREATE_ACL (3006); the body contains the access rights of the subject."""

    subject: str | None = None


@dataclass(slots=True)
class UpdateAclRequestHeader:
    """AUTH_UPDATE_ACL (3007); the body contains the changes."""

    subject: str | None = None


@dataclass(slots=True)
class DeleteAclRequestHeader:
    """AUTH_DELETE_ACL (3008): all policies of a subject, or those of one type or resource."""

    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None


@dataclass(slots=True)
class GetAclRequestHeader:
    """AUTH_GET_ACL (3009); has a response body."""

    subject: str | None = None


@dataclass(slots=True)
class ListAclsRequestHeader:
    """AUTH_LIST_ACL (3010): entries that contain both filters in their subject and resource.

    The response has a body.
    """

    subject_filter: str | None = None
    resource_filter: str | None = None
