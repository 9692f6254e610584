"""Verification: check every activation of a model on this machine, and time its extraction."""

from probekit.verification.compare import selftest
from probekit.verification.inputs import made_up_model
from probekit.verification.result import SelfTest
from probekit.verification.speed import SpeedTest, describe_speed, measure_speed, speed_as_dict, speed_verdict

__all__ = [
    "SelfTest",
    "SpeedTest",
    "describe_speed",
    "made_up_model",
    "measure_speed",
    "selftest",
    "speed_as_dict",
    "speed_verdict",
]
