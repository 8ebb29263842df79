"""Certificates for tests: an authority, and the files that a server or a client reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Files:
    """A certificate with its key, and the root certificate that signed it."""

    cert: Path
    key: Path
    root: Path


class Authority:
    """Issues certificates into `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._directory.mkdir(exist_ok=True)
        self._authority = trustme.CA()
        self.root = directory / "root.pem"
        self._authority.cert_pem.write_to_path(str(self.root))

    def issue(self, name: str, *hosts: str) -> Files:
        """Write a certificate for `hosts` and its key; replace files of that name."""
        leaf = self._authority.issue_cert(*hosts)
        files = Files(self._directory / f"{name}.crt", self._directory / f"{name}.key", self.root)
        files.cert.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        files.key.write_bytes(leaf.private_key_pem.bytes())
        return files
