"""The deployment's secret: 32 random bytes, from which every other key is derived."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import secrets
from pathlib import Path

from atoll.domain.errors import Invalid

_LENGTH = 32


def load_secret(file: Path) -> bytes:
    """Read the secret, making it at the first start (mode 0600). Raises `Invalid` for a file that holds something else."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        pass
    else:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(base64.b64encode(secrets.token_bytes(_LENGTH)) + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
    try:
        secret = base64.b64decode(file.read_bytes().strip(), validate=True)
    except binascii.Error as error:
        raise Invalid("The secret key file must hold 32 bytes in base64.") from error
    if len(secret) != _LENGTH:
        raise Invalid("The secret key file must hold 32 bytes in base64.")
    return secret


def derive_key(secret: bytes, purpose: str) -> bytes:
    """A key of its own for each purpose."""
    return hmac.new(secret, purpose.encode(), hashlib.sha256).digest()
