"""RoBERTa and its relatives against `transformers`; positions that begin after the padding's."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from tiny_configs import SIZES

from probekit.errors import DataError, UsageError
from probekit.models import load_model
from probekit.models.families.bert import Bert, BertConfig
from probekit.models.families.roberta import CLASSES, Roberta, RobertaConfig
from probekit.models.weights import save_hf

TINY = {
    "roberta": RobertaConfig(**SIZES, init_std=0.3),
    "xlm-roberta-untied": RobertaConfig(
        **SIZES, init_std=0.3, model_type="xlm-roberta", tie_embeddings=False, n_segments=2, first_position=6, pooler=True
    ),
    "camembert-headless": RobertaConfig(
        **SIZES, init_std=0.3, model_type="camembert", mlm_head=False, pooler=True, activation="relu"
    ),
}
