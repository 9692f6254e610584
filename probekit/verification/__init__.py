"""Verification: check every activation of a model on this machine."""

from probekit.verification.compare import selftest
from probekit.verification.result import SelfTest

__all__ = ["SelfTest", "selftest"]
