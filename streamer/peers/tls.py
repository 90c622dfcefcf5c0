"""Sets up TLS between peers, if the configuration names certificates: both sides show one of the same authority.

Used by the server (`peers/server.py`), by requests (`peers/transfer.py`), and for a check at the start
(`peers/group.py`). Names in certificates are not compared: members are looked up as addresses, which certificates
seldom have. So the authority must be one for these peers alone: an engine that has a certificate of it, and the token,
is a peer.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path
from typing import Final

import pycurl

from streamer.errors import ConfigError

# The files in the folder of certificates have the names that cert-manager gives them.
CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
AUTHORITY: Final = "ca.crt"


def server_context(folder: str) -> ssl.SSLContext:
    """Returns the context with which the server of a peer speaks TLS, made of the three files in `folder`.

    Raises:
        ConfigError: a file is missing, or is not what its name says.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    _load(context, folder)
    return context


def check(folder: str) -> None:
    """Checks the files in a folder by a connection in memory, with this certificate on both ends.

    Raises:
        ConfigError: a file cannot be used, or peers would refuse the certificate. It may have expired, or not be signed
            by the authority, or not be for both servers and clients.
    """
    server = server_context(folder)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    _load(client, folder)
    to_server = ssl.MemoryBIO()
    to_client = ssl.MemoryBIO()
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    asking = client.wrap_bio(to_client, to_server)
    try:
        for end in (asking, answering) * 2:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    except ssl.SSLError as error:
        raise _unusable(folder, error) from error


class Renewal:
    """Notices when the files of certificates have been renewed, and takes the new ones.

    Args:
        context: context of the server, which was just made of the files.
        folder: folder of the files.
    """

    def __init__(self, context: ssl.SSLContext, folder: str) -> None:
        self._context = context
        self._certificate = Path(folder, CERTIFICATE)
        self._read_at = self._read_time()

    def look(self) -> None:
        """Reads the files again if the certificate was written since the last time; new connections use them.

        Raises:
            ConfigError: the files cannot be used, perhaps as only one is written so far. The next call tries again.
        """
        if (written_at := self._read_time()) != self._read_at:
            # The files are tried with another context first: a context that fails to read a key has no key any more.
            check(str(self._certificate.parent))
            _load(self._context, str(self._certificate.parent))
            self._read_at = written_at

    def _read_time(self) -> int:
        try:
            return self._certificate.stat().st_mtime_ns
        except OSError:
            return 0


def use_tls(easy: pycurl.Curl, folder: str) -> None:
    """Sets the options of a handle of libcurl so that it speaks TLS to peers. It reads the files at each connection."""
    easy.setopt(pycurl.PROTOCOLS, pycurl.PROTO_HTTPS)
    easy.setopt(pycurl.SSLVERSION, pycurl.SSLVERSION_TLSv1_3)
    easy.setopt(pycurl.SSLCERT, str(Path(folder, CERTIFICATE)))
    easy.setopt(pycurl.SSLKEY, str(Path(folder, KEY)))
    easy.setopt(pycurl.CAINFO, str(Path(folder, AUTHORITY)))
    # The authorities that the system trusts sign for all the world, so their certificates do not make a peer.
    easy.unsetopt(pycurl.CAPATH)
    easy.setopt(pycurl.SSL_VERIFYHOST, 0)


def _load(context: ssl.SSLContext, folder: str) -> None:
    """Reads the three files into a context; ConfigError if that fails."""
    try:
        context.load_cert_chain(Path(folder, CERTIFICATE), Path(folder, KEY), password=_refuse)
        context.load_verify_locations(Path(folder, AUTHORITY))
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise _unusable(folder, error) from error


def _refuse() -> str:
    """Refuses a key with a passphrase, instead of asking for it at the terminal."""
    raise ValueError("the key has a passphrase")


def _unusable(folder: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"[peers] tls_folder={folder}: {error}; it needs this engine's {CERTIFICATE} (for servers and clients) and "
        f"{KEY}, PEM without a passphrase, and {AUTHORITY} of the authority that signs the certificates of all peers",
        field="tls_folder",
    )
