"""The version of the format of stores, and the digest of what decides the bits of one."""

import hashlib
import json
from typing import Any

FORMAT_VERSION = 3
OLD_VERSION = 2  # is read, and not written to: its examples are JSON (`store.old_examples`)


def identity_digest(identity: dict[str, Any]) -> str:
    """Hex sha256 of an identity."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
