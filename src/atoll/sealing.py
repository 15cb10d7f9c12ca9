"""Secrets at rest: authenticated encryption (AES-256-GCM) of the few values that have to be used again as they came.

Wired into `Services` by compose; the use cases that store or use a secret call it. A sealed value opens only under the
context it was sealed for, which names table, column and row: one that is copied to another row does not open there.
It knows no table and logs nothing. Tokens are not sealed but hashed, because they are only ever compared.
"""

from __future__ import annotations

import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from atoll.domain.errors import AtollError

_VERSION = b"\x01"
_NONCE_BYTES = 12
"""Random. At one key, 2^32 values keep the chance of a repeated nonce below 2^-32."""


class Unsealable(AtollError):  # noqa: N818 - says what the value is
    """A sealed value is damaged, belongs to another row, or was sealed under another secret key."""

    def __init__(self) -> None:
        super().__init__("A stored secret cannot be decrypted; is this the secret key that it was stored with?")


class Sealer:
    """Seals and opens with one key of 32 bytes."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)

    def seal(self, plaintext: bytes, context: str) -> bytes:
        """Encrypt; `context` names where the value is kept, as `table.column:ROW`."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return _VERSION + nonce + self._cipher.encrypt(nonce, plaintext, _bound(context))

    def open(self, sealed: bytes, context: str) -> bytes:
        """Decrypt; raises `Unsealable`."""
        nonce, body = sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
        if sealed[:1] != _VERSION or len(nonce) != _NONCE_BYTES:
            raise Unsealable
        try:
            return self._cipher.decrypt(nonce, body, _bound(context))
        except InvalidTag:
            raise Unsealable from None


def _bound(context: str) -> bytes:
    return _VERSION + context.encode()
