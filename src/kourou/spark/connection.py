"""Connections of Spark's processes to a cluster: the options, and the client settings they give.

Credentials are read in the process that connects, so that none are pickled or logged by Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from kourou.auth.credentials import Credentials
from kourou.errors import ConfigError
from kourou.remoting.tls import TlsClientConfig


class ClientSettings(TypedDict):
    """The fields of a `ClientConfig` that options set."""

    namespace: str
    tls: TlsClientConfig | None
    credentials: Credentials | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ConnectionOptions:
    """The options that all connections to a cluster share.

    Attributes:
        name_server: as in `nameServer`; empty for a read of storePath.
        credentials_file: None: the environment may hold the keys.

    Raises:
        ConfigError: tlsCaFile is given without useTls.
    """

    name_server: str = ""
    namespace: str = ""
    use_tls: bool = False
    tls_ca_file: str | None = None
    credentials_file: str | None = None

    def __post_init__(self) -> None:
        if self.tls_ca_file is not None and not self.use_tls:
            raise ConfigError(
                "tlsCaFile is given, but useTls is false: add .option('useTls', 'true')"
            )

    def settings(self) -> ClientSettings:
        """Return the settings of a client in this process; reads the credentials.

        Raises:
            CredentialsError: the file or the environment does not hold both keys.
        """
        file = self.credentials_file
        trusted = None if self.tls_ca_file is None else Path(self.tls_ca_file)
        return ClientSettings(
            namespace=self.namespace,
            tls=TlsClientConfig(trust_cert_path=trusted) if self.use_tls else None,
            credentials=(
                Credentials.from_environment() if file is None else Credentials.from_file(file)
            ),
        )
