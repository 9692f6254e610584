"""The code of docs/how-to/erase-a-concept.md runs, on fewer rows."""

import re
from pathlib import Path
from typing import Any

PAGE = (Path(__file__).parents[3] / "docs/how-to/erase-a-concept.md").read_text(encoding="utf-8")


def test_the_guide_runs():
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL))
    known: dict[str, Any] = {}
    exec(code.replace('load_task("agreement")', 'load_task("agreement", limit=80)'), known)
    assert known["eraser"].rank == 1
    assert known["found"].places == [("resid_pre", 0), *(("resid_pre", i) for i in (1, 2, 3)), ("resid_post", 3)]
