"""Which libraries a store needs: a first extraction should not wait for those that it does not."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
import numpy as np
import probekit as pk
from probekit.models.families.gpt2 import GPT2, GPT2Config
from probekit.tasks.base import Task

cfg = GPT2Config(d_model=8, n_heads=2, d_mlp=8, n_layers=1, n_ctx=8, d_vocab=20, bos_token_id=0)
splits = np.array(["train", "test"])[np.arange(8) % 2]
task = Task("t", [[i + 1, 3] for i in range(8)], {"y": np.arange(8) % 2}, {"y": ["a", "b"]}, splits, "y",
            columns={"page": np.arange(8.0), "word": [None, *"bcdefgh"]})
pk.extract(GPT2(cfg).init_weights(0), task, points="resid_pre", position="all", out=sys.argv[1], progress=False)
assert pk.load_activations(sys.argv[1]).task.inputs[1] == [2, 3]
print([name for name in ("pandas", "matplotlib", "sklearn", "transformers", "datasets") if name in sys.modules])
"""


def test_a_store_is_written_and_read_without_pandas(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "store")], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
