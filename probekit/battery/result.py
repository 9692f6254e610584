"""What the battery of compiled models found: the truth and the verdict of each variable, place by place."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from probekit.tables import text_table
from probekit.text import counted

HEADER = ["model", "variable", "place", "truth", "verdict", "score", "effect", "placebos"]


@dataclass(frozen=True)
class KnownAnswer:
    """One truth, and what the tool says of it.

    Attributes:
        model: a compiled model.
        variable: a label set of its task.
        place: "resid_pre.1"; "resid_pre.1, erased", where the question is whether answers need it there; "head 0.1",
            whether the head carries it; "resid_pre.1, without shape", whether anything is read beyond a cue.
        truth: as it follows from the program.
        verdict: of the tool, in the same words.
        score: of the probe on test; None for a head.
        effect: of the edit, a share of the full exchange; None where nothing is edited.
        placebo: the largest effect of a placebo there; None where there are none.
        seed: of the texts, and of everything else that was drawn.
    """

    model: str
    variable: str
    place: str
    truth: str
    verdict: str
    score: float | None
    effect: float | None
    placebo: float | None
    seed: int

    @property
    def is_right(self) -> bool:
        """Whether the verdict is the truth."""
        return self.verdict == self.truth

    @property
    def question(self) -> tuple[str, str, str]:
        """Model, variable and place: the same in every repeat."""
        return self.model, self.variable, self.place

    @property
    def cells(self) -> list[str]:
        """The row of the table."""
        numbers = (self.score, self.effect, self.placebo)
        return [*self.question, self.truth, self.verdict, *("" if x is None else f"{x:z.2f}" for x in numbers)]


@dataclass(frozen=True, repr=False)
class KnownAnswers:
    """The truths of compiled models, and the verdicts.

    Attributes:
        answers: in the order of the models; of several repeats, one after the other.
    """

    answers: Sequence[KnownAnswer]

    def __iter__(self) -> Iterator[KnownAnswer]:
        return iter(self.answers)

    def __len__(self) -> int:
        return len(self.answers)

    @property
    def wrong(self) -> list[KnownAnswer]:
        """Those whose verdict is not the truth."""
        return [answer for answer in self.answers if not answer.is_right]

    @property
    def seeds(self) -> list[int]:
        """Of the repeats, in order."""
        return list(dict.fromkeys(answer.seed for answer in self.answers))

    @property
    def verdict(self) -> str:
        """One line: how many verdicts are wrong, and the first of them."""
        n = counted(len(self), "verdict")
        if not self.wrong:
            return f"All {n} right."
        first = self.wrong[0]
        where = f"{first.model}, {first.variable} at {first.place}, seed {first.seed}"
        return (
            f"{len(self.wrong)} of {n} wrong; the first: {where}: the truth is {first.truth!r}, the verdict "
            f"{first.verdict!r}."
        )

    def rows(self) -> list[list[str]]:
        """Header and a row for each question: the numbers of the first repeat, and in how many the verdict is wrong."""
        n_wrong: dict[tuple[str, str, str], int] = {}
        for answer in self.answers:
            n_wrong[answer.question] = n_wrong.get(answer.question, 0) + (not answer.is_right)
        first = [answer for answer in self.answers if answer.seed == self.seeds[0]]
        return [
            [*HEADER, "wrong" if len(self.seeds) == 1 else f"wrong of {len(self.seeds)}"],
            *([*answer.cells, str(n_wrong[answer.question] or "")] for answer in first),
        ]

    def describe(self) -> str:
        """The table, and the verdict."""
        return text_table(self.rows(), left=5) + f"\n\n{self.verdict}"

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        answers = [{**asdict(answer), "right": answer.is_right} for answer in self.answers]
        return {"verdict": self.verdict, "n_wrong": len(self.wrong), "answers": answers}

    def __repr__(self) -> str:  # a notebook shows the table
        return self.describe()
