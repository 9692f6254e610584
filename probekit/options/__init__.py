"""Lists of options, each written once as a frozen dataclass; nothing here needs torch.

The keyword arguments of the public functions, the options of the command line, the keys of `--config` files, the
`--help` texts and the command reference are all derived from these fields.
"""

from probekit.options.causal import CausalArguments, CausalOptions
from probekit.options.curve import CurveOptions, TransferArguments, TransferOptions
from probekit.options.engine import ClusterOptions, EngineOptions
from probekit.options.export import ExportOptions, PushOptions
from probekit.options.extract import ExtractArguments, ExtractOptions
from probekit.options.generate import ContinuationOptions, GenerateOptions, Sampling, TrainingSettings
from probekit.options.imports import ImportArguments, ImportOptions
from probekit.options.load import DeviceOptions, ModelArguments, ModelOptions
from probekit.options.probe import CurvesArguments, ProbeArguments, ProbeOptions
from probekit.options.prompt import PromptArguments, PromptOptions
from probekit.options.report import CompareOptions, ReportOptions
from probekit.options.samples import SampleOptions
from probekit.options.score import MonitorOptions, ScoreOptions
from probekit.options.sweep import SweepArguments, SweepOptions
from probekit.options.task import LabelArguments, LabelOptions, TaskOptions

__all__ = [
    "CausalArguments",
    "CausalOptions",
    "ClusterOptions",
    "CompareOptions",
    "ContinuationOptions",
    "CurveOptions",
    "CurvesArguments",
    "DeviceOptions",
    "EngineOptions",
    "ExportOptions",
    "ExtractArguments",
    "ExtractOptions",
    "GenerateOptions",
    "ImportArguments",
    "ImportOptions",
    "LabelArguments",
    "LabelOptions",
    "ModelArguments",
    "ModelOptions",
    "MonitorOptions",
    "ProbeArguments",
    "ProbeOptions",
    "PromptArguments",
    "PromptOptions",
    "PushOptions",
    "ReportOptions",
    "SampleOptions",
    "Sampling",
    "ScoreOptions",
    "SweepArguments",
    "SweepOptions",
    "TaskOptions",
    "TrainingSettings",
    "TransferArguments",
    "TransferOptions",
]
