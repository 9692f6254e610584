"""The token by layer view in a browser: its size, and how long it takes to open, to change the layer and to sort.

Made-up scores in the shape of GPT-2 small: 500 texts of 40 tokens at 13 places, a vocabulary with Zipf's frequencies, a
logit lens and attention patterns of as many texts as the view keeps. Needs chromium and chromedriver.

    python benchmarks/token_view.py [--texts 500] [--rounds 7]
"""

import argparse
import statistics
import tempfile
from pathlib import Path

import numpy as np
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from probekit.report.tokens.data import TRAINED, Attention, Lens, ScoredText, TokenScores
from probekit.report.tokens.find import LENS_TOKENS, LISTED, PATTERN_BYTES
from probekit.report.tokens.section import token_page

TOKENS, PLACES, HEADS, VOCABULARY = 40, 13, 12, 50_257
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# each is timed to the next frame, when the page has been laid out and painted
CHANGE = """
const [name, value, done] = arguments, field = document.querySelector(`[name="${name}"]`), start = performance.now();
field.value = value;
field.dispatchEvent(new Event(field.tagName === "SELECT" ? "change" : "input", { bubbles: true }));
requestAnimationFrame(() => setTimeout(() => done(performance.now() - start), 0));
"""
OPENED = "const e = performance.getEntriesByType('navigation')[0]; return e.loadEventEnd - e.startTime;"
PAINTED = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null;"


def made_up(n_texts: int) -> TokenScores:
    """A view of so many texts."""
    rng = np.random.default_rng(0)
    T = n_texts * TOKENS
    ids = np.minimum(rng.zipf(1.2, T), VOCABULARY - 1)
    marks = np.zeros(T, dtype=np.uint8)
    marks[TOKENS - 1 :: TOKENS] = TRAINED
    scores = rng.standard_t(3, (1, PLACES, T)) * np.linspace(0.2, 4, PLACES)[None, :, None]
    places = [f"resid_pre.{i}" for i in range(PLACES - 1)] + [f"resid_post.{PLACES - 2}"]
    lens_texts, words = min(n_texts, LENS_TOKENS // TOKENS), np.arange(VOCABULARY)
    top = np.minimum(rng.zipf(1.2, (PLACES, lens_texts * TOKENS, LISTED)), VOCABULARY - 1)
    weights = np.tril(rng.random((PLACES - 1, HEADS, TOKENS, TOKENS)))
    kept = PATTERN_BYTES // ((PLACES - 1) * HEADS * TOKENS**2)
    return TokenScores(
        texts=[
            ScoredText(f"test:{i}", "yes", "no" if i % 7 == 0 else "yes", i % 7 == 0, "random") for i in range(n_texts)
        ],
        offsets=np.arange(0, T + 1, TOKENS),
        pieces=[f" w{i}" for i in ids],
        marks=marks,
        places=places,
        layers=[*range(PLACES - 1), PLACES - 2],
        best=8,
        outputs=["yes"],
        scores=scores,
        placebo=rng.permutation(scores, axis=2),
        text_scores=scores[:, :, TOKENS - 1 :: TOKENS],
        centres=np.zeros(PLACES),
        units=np.ones(PLACES),
        meta={
            **{name: name for name in ("model", "task", "label", "probe", "point")},
            "position": "last",
            "kind": "log odds",
            "classes": ["no", "yes"],
            "of_sequences": False,
            "has_best": True,
            "fpr": None,
            "calibrated_on": 500,
            "notes": [],
        },
        lens=Lens(lens_texts, places, top, rng.random(top.shape), {int(i): f" w{i}" for i in words[np.unique(top)]}),
        attention=Attention([*range(PLACES - 1)], [*range(kept)], [weights / weights.sum(-1, keepdims=True)] * kept),
    )


def browser(profile: str) -> webdriver.Chrome:
    """Chromium without a window."""
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in [*FLAGS, f"--user-data-dir={profile}", "--window-size=1200,900"]:
        options.add_argument(flag)
    return webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))


def main() -> None:
    """Print the size and the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    times: dict[str, list[float]] = {name: [] for name in ("open", "first paint", "layer", "sort", "placebo", "find")}
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "view.html"
        page.write_text(token_page(made_up(asked.texts)), encoding="utf-8")
        driver = browser(f"{folder}/profile")
        try:
            for number in range(asked.rounds):
                driver.get(page.as_uri())
                times["open"].append(driver.execute_script(OPENED))
                times["first paint"].append(driver.execute_script(PAINTED) or float("nan"))
                for name, value in (("layer", str(number % PLACES)), ("sort", "up"), ("find", f"w{number + 1}")):
                    times[name].append(driver.execute_async_script(CHANGE, name, value))
            size = page.stat().st_size
        finally:
            driver.quit()
    print(f"{asked.texts} texts x {TOKENS} tokens x {PLACES} places: {size / 1e6:.2f} MB")
    for name, found in times.items():
        if found:
            print(f"{name:<12} {statistics.median(found):6.0f} ms  ({min(found):.0f} to {max(found):.0f})")


if __name__ == "__main__":
    main()
