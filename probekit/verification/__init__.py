"""Verification: is every activation of this model, on this machine, what it should be?"""

from probekit.verification.checks import selftest
from probekit.verification.result import SelfTest

__all__ = ["SelfTest", "selftest"]
