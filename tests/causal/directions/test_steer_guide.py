"""The code of docs/how-to/steer.md runs, on fewer rows."""

import re
from pathlib import Path
from typing import Any

PAGE = (Path(__file__).parents[3] / "docs/how-to/steer.md").read_text(encoding="utf-8")
SMALLER = {
    'load_task("agreement")': 'load_task("agreement", limit=150)',
    "random_directions(20,": "random_directions(1,",
    "max_new_tokens=2": "max_new_tokens=1",
    "steps=200, restarts=3": "steps=15, restarts=1",
}


def test_the_guide_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL))
    for as_written, smaller in SMALLER.items():
        assert as_written in code
        code = code.replace(as_written, smaller)
    known: dict[str, Any] = {}
    exec(code, known)
    assert known["found"].recovery > known["found"].control_recovery + 0.1
    assert {path.name for path in tmp_path.iterdir()} == {"number.safetensors", "number.gguf"}
