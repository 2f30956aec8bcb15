"""Certificates for tests of TLS, made afresh with openssl."""

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificates:
    """An authority, and a server and a client certificate that it signed, as PEM files."""

    ca: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path


def make_certificates(folder: Path, names: str = "DNS:localhost,IP:127.0.0.1") -> Certificates:
    """Makes an authority and what it signs in ``folder``, for the subject alternative ``names``."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-days", "2", "-subj", "/CN=test ca")
    (folder / "names").write_text(f"subjectAltName={names}\n")
    for name in ("server", "client"):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
            "-days", "2", "-out", f"{name}.crt", "-extfile", "names",
        )  # fmt: skip
    return Certificates(
        ca=folder / "ca.crt", server=folder / "server.crt", server_key=folder / "server.key",
        client=folder / "client.crt", client_key=folder / "client.key",
    )  # fmt: skip
