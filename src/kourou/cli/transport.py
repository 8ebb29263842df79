"""TLS, namespace and credentials of commands, from the environment.

KOUROU_TLS_ENABLE=true makes every command use TLS. The fields of `TlsClientConfig` are
KOUROU_TLS_TRUST_CERT_PATH, KOUROU_TLS_CERT_PATH, KOUROU_TLS_KEY_PATH and so on.

KOUROU_NAMESPACE is a namespace of RocketMQ 4 for all topics and groups: commands accept and print
names without it, and servers store `namespace%name`.

With KOUROU_ACCESS_KEY and KOUROU_SECRET_KEY (and KOUROU_SECURITY_TOKEN), or a file named by
KOUROU_CREDENTIALS_FILE, commands sign their requests. There is no command-line option for keys,
because other users of the machine can see command lines.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kourou.auth.credentials import Credentials
from kourou.errors import ConfigError
from kourou.remoting.tls import TlsClientConfig

PREFIX: Final = "KOUROU_TLS_"
NAMESPACE_VARIABLE: Final = "KOUROU_NAMESPACE"


@dataclass(frozen=True, kw_only=True)
class _Transport:
    enable: bool = False
    client: TlsClientConfig = field(default_factory=TlsClientConfig)


def client_namespace(environ: Mapping[str, str] = os.environ) -> str:
    """Return the namespace of commands; empty for none."""
    return environ.get(NAMESPACE_VARIABLE, "").strip()


def client_credentials(environ: Mapping[str, str] = os.environ) -> Credentials | None:
    """Return the keys with which commands sign their requests; None for unsigned requests.

    Raises:
        CredentialsError: a key is missing in the variables or the file, or other users can read the
            file.
    """
    return Credentials.from_environment(environ)


def client_tls(environ: Mapping[str, str] = os.environ) -> TlsClientConfig | None:
    """Return the TLS settings; None for plain connections.

    Raises:
        ConfigError: a variable is unknown or has a bad value, or TLS variables are set without
            KOUROU_TLS_ENABLE=true, which would send data unencrypted by mistake.
    """
    if not any(name.startswith(PREFIX) for name in environ):
        return None
    from kourou import settings  # noqa: PLC0415  # rarely needed; keeps the start of commands fast

    found = settings.load(_Transport, environ=environ, prefix=PREFIX, flags={})
    if found.enable:
        return found.client
    if found.client != TlsClientConfig():
        raise ConfigError(f"{PREFIX}... is set, but TLS is off: set {PREFIX}ENABLE=true too")
    return None
