"""Self-tests of tiny models on fewer texts than users get."""

import pytest

from probekit.verification import inputs


@pytest.fixture
def five_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Self-tests run one text of each kind: one token, a short text, its beginning, a branch of it, and a long text.

    `tests/verification` runs all texts.
    """
    drawn = inputs._drawn
    monkeypatch.setattr(inputs, "_drawn", lambda *how: [x for i, x in enumerate(drawn(*how)) if i in (0, 1, 2, 4, 5)])
