"""The deployment's secret: 32 random bytes, from which every other key is derived."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import os
import secrets
from pathlib import Path

from atoll.domain.errors import Invalid

_LENGTH = 32


def load_secret(file: Path) -> bytes:
    """Read the secret, making it at the first start (mode 0600).

    Raises `Invalid` for a file that holds something else or cannot be read.
    """
    try:
        if not file.exists():
            _make(file)
        secret = base64.b64decode(file.read_bytes().strip(), validate=True)
    except binascii.Error as error:
        raise Invalid("The secret key file must hold 32 bytes in base64.") from error
    except OSError as error:
        raise Invalid(f"The secret key file cannot be used: {error.strerror}.") from error
    if len(secret) != _LENGTH:
        raise Invalid("The secret key file must hold 32 bytes in base64.")
    return secret


def _make(file: Path) -> None:
    """Write a new secret under another name and link it: nobody ever sees half of it, and of two the first stays."""
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(base64.b64encode(secrets.token_bytes(_LENGTH)) + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
        with contextlib.suppress(FileExistsError):
            file.hardlink_to(temporary)
    finally:
        temporary.unlink(missing_ok=True)
    directory = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)  # secrets are sealed with it from now on: it must outlive a loss of power
    finally:
        os.close(directory)


def derive_key(secret: bytes, purpose: str) -> bytes:
    """A key of its own for each purpose."""
    return hmac.new(secret, purpose.encode(), hashlib.sha256).digest()
