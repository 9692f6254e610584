"""The tables and the picture of docs/collection.md, from the figures of benchmarks/collection.py."""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from probekit.charts.palette import BLUE, GREY, INK, RED
from probekit.plots.style import SMALL, new_figure, write_figure

MODEL = "stories260k-llama"
START, END = "<!-- made by benchmarks/collection.py -->", "<!-- end -->"
MOST = 12  # tasks in a table


def same_files(folder: Path) -> list[list[str]]:
    """Tasks whose files hold the same bytes."""
    found: dict[str, list[str]] = {}
    for file in sorted(folder.glob("*.csv")):
        found.setdefault(hashlib.sha256(file.read_bytes()).hexdigest(), []).append(f"`{file.stem}`")
    return [names for names in found.values() if len(names) > 1]


def share(record: dict[str, Any], exact: bool = False) -> float:
    """Share of the test texts of a random split that an earlier split holds too, exactly or nearly."""
    found = record["random"]
    if not exact:
        return found["test_leak"]["texts"] / found["test_leak"]["of_texts"]
    return found["shared"]["test in train"]["exact"] / found["test_leak"]["of_texts"]


def table(header: list[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """A Markdown table; columns after the first are aligned to the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return [*(f"| {' | '.join(line)} |" for line in lines), ""]


def number(value: float | None, ends: list[float] | None = None) -> str:
    """0.512 with its interval."""
    text = "" if value is None else f"{value:.3f}"
    return text if not ends else f"{text} [{ends[0]:.3f}, {ends[1]:.3f}]"


def baseline(record: dict[str, Any], name: str) -> dict[str, Any]:
    return record["curve"]["baselines"].get(name) or {"value": None, "interval": None}


def shown(record: dict[str, Any], name: str) -> str:
    return number(baseline(record, name)["value"], baseline(record, name)["interval"])


def length_helps(record: dict[str, Any]) -> bool:
    """Whether the interval of the length baseline is above the majority class."""
    ends, majority = baseline(record, "length")["interval"], baseline(record, "majority")["value"]
    return bool(ends) and ends[0] > majority


def against_baseline(record: dict[str, Any]) -> str:
    """The probe of the selected layer against the best baseline, by the paired interval."""
    ends = record["curve"]["lead"]["interval"]
    return "ahead" if ends[0] > 0 else "behind" if ends[1] < 0 else "tied"


def flips(record: dict[str, Any]) -> bool:
    """Whether the probe leads the best baseline only if test picks the layer."""
    over = record["curve"]["lead"]["over"]
    return over <= 0 < over + record["curve"]["on_test"]["over"]


def summary(records: list[dict[str, Any]], limit: int, model: str) -> list[str]:
    """The counts of all tasks."""
    classes = [one for one in records if one["kind"] != "regression"]
    texts = sum(sum(one["audit"]["n"].values()) for one in records)
    hours = sum(sum(one["seconds"].values()) for one in records) / 3600
    other = [one for one in records if one["curve"]["on_test"]["over"] > 0]
    over = np.mean([one["curve"]["on_test"]["over"] for one in classes])
    kinds = Counter(one["kind"] for one in records)
    sides = Counter(map(against_baseline, records))
    cut = sum(bool(one["curve"]["cut"]) for one in records)
    counts = [
        ("a random split of the rows puts a test text into train, too", sum(share(one, True) > 0 for one in records)),
        ("... and that is 10% of the test texts or more", sum(share(one, True) >= 0.1 for one in records)),
        ("with near-duplicates, 10% or more", sum(share(one) >= 0.1 for one in records)),
        (
            "equal texts kept together, near-duplicates still in 1% of test or more",
            sum(leak_left(one) >= 0.01 for one in records),
        ),
        ("a text has contradictory labels", sum(one["audit"]["conflicts"]["texts"] > 0 for one in records)),
        (
            "splits differ in length, labels or repeated texts",
            sum(bool(one["audit"]["differences"]) for one in records),
        ),
        (f"length beats the majority class (of {len(classes)} with classes)", sum(map(length_helps, classes))),
        (
            f"bag of words reaches 0.95 (of {len(classes)} with classes)",
            sum(baseline(one, "bag-of-words")["value"] >= 0.95 for one in classes),
        ),
        ("probe ahead of the best baseline", sides["ahead"]),
        ("probe tied with the best baseline", sides["tied"]),
        ("probe behind the best baseline", sides["behind"]),
        ("test would have picked another layer than validation", len(other)),
        ("the probe leads the best baseline only if test picks the layer", sum(map(flips, records))),
    ]
    less = [one["curve"]["limit"] for one in records if one["curve"].get("limit", limit) < limit]
    fewer = f" ({max(less):,} for the {len(less)} tasks with the longest texts)" if less else ""
    setting = (
        f"{len(records)} tasks ({', '.join(f'{n} {kind}' for kind, n in kinds.items())}), {texts:,} texts. Probes: "
        f"{model}, last token, at most {limit:,} texts of each split{fewer}; texts of {cut} tasks were cut at the "
        f"context of 512 tokens. Time: {hours:.1f} hours of one thread on a busy machine. {time.strftime('%Y-%m-%d')}."
    )
    claim = (
        f"The layer that test picks claims {over:.3f} more accuracy than the layer that validation selects, on average "
        f"over the {len(classes)} tasks with classes."
    )
    return [setting, "", *table(["finding", "tasks"], [[what, str(n)] for what, n in counts]), claim, ""]


def leak_left(record: dict[str, Any]) -> float:
    """Share of the test texts that leak where equal texts share a split."""
    return record["audit"]["test_leak"]["texts"] / record["audit"]["test_leak"]["of_texts"]


def report(records: list[dict[str, Any]], same: list[list[str]], limit: int, model: str) -> str:
    """The tables of docs/collection.md."""
    classes = [one for one in records if one["kind"] != "regression"]
    name = "`{}`".format
    leaks = sorted(records, key=share, reverse=True)[:MOST]
    conflicts = sorted(records, key=lambda one: -one["audit"]["conflicts"]["texts"])[:MOST]
    lengths = [one for one in classes if length_helps(one)]
    lengths.sort(key=lambda one: baseline(one, "majority")["value"] - baseline(one, "length")["value"])
    words = sorted(classes, key=lambda one: -baseline(one, "bag-of-words")["value"])[:MOST]
    lines = ["## Found", "", *summary(records, limit, model)]
    lines += ["### Files with the same bytes", "", *(f"- {' and '.join(names)}" for names in same), "", "### Leaks", ""]
    lines += table(
        ["task", "test texts", "random split: exact", "exact or near", "equal texts kept together: near"],
        [
            [
                name(one["task"]),
                f"{one['random']['test_leak']['of_texts']:,}",
                f"{share(one, True):.0%}",
                f"{share(one):.0%}",
                f"{leak_left(one):.0%}",
            ]
            for one in leaks
        ],
    )
    lines += ["### Contradictory labels", ""]
    lines += table(
        ["task", "kind", "texts", "rows"],
        [
            [name(one["task"]), one["kind"], *(f"{one['audit']['conflicts'][key]:,}" for key in ("texts", "rows"))]
            for one in conflicts
        ],
    )
    lines += ["### Tasks that length helps with", ""]
    columns = ("majority", "length", "bag-of-words")
    header = ["task", *columns, "probe"]
    lines += table(header, [scores(one, columns) for one in lengths[:MOST]])
    lines += ["### Tasks that a bag of words solves", "", *table(header, [scores(one, columns) for one in words])]
    lines += ["### The layer that validation selects, and the one that test would have picked", ""]
    lines += table(
        ["task", "selected", "minus best baseline", "picked by test", "minus best baseline"],
        [
            [
                name(one["task"]),
                one["curve"]["place"],
                f"{one['curve']['lead']['over']:+.3f} ({one['curve']['lead']['baseline']})",
                one["curve"]["on_test"]["layer"],
                f"{one['curve']['lead']['over'] + one['curve']['on_test']['over']:+.3f}",
            ]
            for one in sorted(filter(flips, records), key=lambda one: -one["curve"]["on_test"]["over"])
        ],
    )
    return "\n".join([*lines, "### All tasks", "", *every_task(records, columns)])


def scores(record: dict[str, Any], columns: Iterable[str]) -> list[str]:
    """The task, some of its baselines, and the probe."""
    return [
        f"`{record['task']}`",
        *(shown(record, name) for name in columns),
        number(record["curve"]["value"], record["curve"]["interval"]),
    ]


def every_task(records: list[dict[str, Any]], columns: Iterable[str]) -> list[str]:
    """A line for each task, in the order of their numbers."""
    ordered = sorted(records, key=lambda one: int(one["task"].split("_")[0]))
    return table(
        ["task", "metric", *columns, "probe", "layer", "against baselines", "random split: leaks"],
        [
            [
                f"`{one['task']}`",
                one["curve"]["metric"],
                *(number(baseline(one, "mean" if name == "majority" and one["kind"] == "regression" else name)["value"])
                  for name in columns),
                number(one["curve"]["value"], one["curve"]["interval"]),
                one["curve"]["place"],
                against_baseline(one),
                f"{share(one):.0%}",
            ]
            for one in ordered
        ],
    )  # fmt: skip


def draw(records: list[dict[str, Any]], path: Path) -> None:
    """The probe of the selected layer against the best of bag of words and length, a point for each task."""
    with new_figure((6.4, 5.2)) as figure:
        ax = figure.subplots()
        classes = [one for one in records if one["kind"] != "regression"]
        looks = {"ahead": (BLUE, "o", "of"), "tied": (GREY, "s", "with"), "behind": (RED, "v", "")}
        for side, (colour, marker, word) in looks.items():
            own = [one for one in classes if against_baseline(one) == side]
            xs = [max(baseline(one, name)["value"] for name in ("bag-of-words", "length")) for one in own]
            ys = [one["curve"]["value"] for one in own]
            label = " ".join(f"{side} {word} the best baseline: {len(own)} tasks".split())
            ax.scatter(xs, ys, s=20, color=colour, marker=marker, alpha=0.75, linewidths=0, label=label)
        ax.plot([0, 1], [0, 1], color=INK, linewidth=1, linestyle=(0, (4, 2)), zorder=1)
        ax.set_xlim(0.15, 1.02)
        ax.set_ylim(0.15, 1.02)
        ax.set_xlabel("bag of words or length, whichever is better (test accuracy)", fontsize=SMALL)
        ax.set_ylabel("probe at the layer selected on validation (test accuracy)", fontsize=SMALL)
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False, fontsize=SMALL, loc="upper left")
        ax.set_title(f"{len(classes)} tasks of sae-probes, {MODEL}", loc="left", fontsize=11, fontweight="bold")
        write_figure(figure, path)


def write_page(out: Path, page: Path, limit: int) -> None:
    """Replace the tables of a page, and its picture next to it."""
    records = [json.loads(line) for line in (out / "collection.jsonl").read_text().splitlines()]
    before, _, rest = page.read_text().partition(START)
    after = rest.partition(END)[2]
    tables = report(records, same_files(out / "tasks"), limit, MODEL)
    page.write_text(f"{before}{START}\n{tables}\n{END}{after}")
    draw(records, page.parent / "img" / "collection.png")
    (page.parent / "img" / "collection.svg").unlink()
