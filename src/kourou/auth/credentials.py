"""Credentials with which a client signs its requests, from code, a file or the environment.

A credentials file holds the lines `accessKey: text`, `secretKey: text` and, for temporary
credentials, `securityToken: text`, as RocketMQ's `conf/tools.yml` does. The separator may also be
`=`, and a value may be quoted. Only the owner may have access to the file.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from kourou.errors import CredentialsError

ACCESS_KEY_VARIABLE: Final = "KOUROU_ACCESS_KEY"
SECRET_KEY_VARIABLE: Final = "KOUROU_SECRET_KEY"  # noqa: S105 - a variable's name
SECURITY_TOKEN_VARIABLE: Final = "KOUROU_SECURITY_TOKEN"  # noqa: S105 - likewise
FILE_VARIABLE: Final = "KOUROU_CREDENTIALS_FILE"

FILE_BYTES_MAX: Final = 65_536
"""Largest credentials file in bytes; a larger file is assumed to be named by mistake."""

_FIELD_BYTES_MAX: Final = 16_384
"""Largest access key, secret key or security token in bytes. Tokens of cloud providers have about
1,000 bytes."""

_KEYS: Final = {
    "accesskey": "access_key",
    "secretkey": "secret_key",
    "securitytoken": "security_token",
}


@dataclass(frozen=True, slots=True)
class Credentials:
    """The keys of one user. `repr` shows the access key only.

    Args:
        access_key: the user name.
        secret_key: signs requests; never sent.
        security_token: for temporary credentials; sent with each request.

    Raises:
        CredentialsError: a value is not a str, is blank or is too long; the error does not show it.
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _check("access_key", self.access_key)
        _check("secret_key", self.secret_key)
        if self.security_token is not None:
            _check("security_token", self.security_token)

    @classmethod
    def from_file(cls, path: Path | str) -> Self:
        """Read a credentials file; see the module's docstring for its format.

        Raises:
            CredentialsError: the file cannot be read, users other than its owner have access to
                it, it is longer than `FILE_BYTES_MAX`, or it lacks one of the two keys.
        """
        values: dict[str, str] = {}
        for number, line in enumerate(_read_private(Path(path)).splitlines(), 1):
            text = line.strip()
            if not text or text.startswith(("#", "---")):
                continue
            key, value = _split_line(text)
            name = _KEYS.get(key.replace("_", "").lower())
            if name is None or name in values:
                problem = "repeats a key" if name in values else "has none of the expected keys"
                raise CredentialsError(
                    f"{path}: line {number} {problem}: expected accessKey: ..., secretKey: ... and "
                    "optionally securityToken: ..., each on its own line"
                )
            values[name] = value
        for key, name in (("accessKey", "access_key"), ("secretKey", "secret_key")):
            if name not in values:
                raise CredentialsError(f"{path}: {key} is missing: add a line {key}: ...")
        try:
            return cls(**values)
        except CredentialsError as error:
            raise CredentialsError(f"{path}: {error}") from None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Self | None:
        """Read KOUROU_ACCESS_KEY, KOUROU_SECRET_KEY and KOUROU_SECURITY_TOKEN.

        Alternatively, KOUROU_CREDENTIALS_FILE names a credentials file.

        Returns:
            The credentials, or None if no variable is set: requests are then not signed.

        Raises:
            CredentialsError: one of the two keys is missing, both keys and a file are given, or
                the file is refused by `from_file`.
        """
        names = (ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE, SECURITY_TOKEN_VARIABLE)
        access_key, secret_key, token = (environ.get(name, "").strip() for name in names)
        file = environ.get(FILE_VARIABLE, "").strip()
        has_keys = bool(access_key or secret_key or token)
        if file and has_keys:
            raise CredentialsError(
                f"{FILE_VARIABLE} is set, and so are the variables of the keys: unset one of them"
            )
        if file:
            try:
                return cls.from_file(file)
            except CredentialsError as error:
                raise CredentialsError(f"{FILE_VARIABLE}={error}") from error
        if not has_keys:
            return None
        for name, value in zip(names, (access_key, secret_key), strict=False):
            if not value:
                raise CredentialsError(
                    f"{name} is missing: signed requests need {ACCESS_KEY_VARIABLE} and "
                    f"{SECRET_KEY_VARIABLE}"
                )
        try:
            return cls(access_key, secret_key, token or None)
        except CredentialsError as error:
            raise CredentialsError(f"the environment: {error}") from None


CredentialsFunction = Callable[[], Credentials]
"""Returns the credentials that are currently valid."""

AnyCredentials = Credentials | CredentialsFunction
"""Accepted by clients: fixed credentials, or a function that returns the current ones."""


def _check(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise CredentialsError(f"{name} must be a str, not {type(value).__name__}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise CredentialsError(f"{name} is not valid Unicode text") from None
    if not value.strip():
        raise CredentialsError(f"{name} is blank: pass the key of a user of the cluster")
    if size > _FIELD_BYTES_MAX:
        raise CredentialsError(f"{name} has {size} bytes: at most {_FIELD_BYTES_MAX} are allowed")


def _split_line(line: str) -> tuple[str, str]:
    """Return the key and the value of a line, separated by its first `:` or `=`."""
    at = min((at for mark in ":=" if (at := line.find(mark)) >= 0), default=len(line))
    value = line[at + 1 :].strip()
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        value = value[1:-1]
    return line[:at].strip(), value


def _read_private(path: Path) -> str:
    """Return the text of a file to which only its owner has access."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            # On Windows the mode bits do not describe access rights.
            if sys.platform != "win32" and mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise CredentialsError(
                    f"{path}: other users have access to the file (mode "
                    f"{stat.S_IMODE(mode):04o}): chmod 600 {path}"
                )
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise CredentialsError(f"{path}: {error.strerror or error}") from error
    if len(data) > FILE_BYTES_MAX:
        raise CredentialsError(
            f"{path}: larger than {FILE_BYTES_MAX} bytes, so not a credentials file: check the path"
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CredentialsError(f"{path}: not UTF-8 at byte {error.start}") from None
