"""`--set train-probe.probe.k=4`, and a mapping in a `--config` file."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probekit.cli.main import run
from probekit.cli.probes import check_parameters, make_probe
from probekit.errors import UsageError
from probekit.options import CurveOptions
from probekit.probes import KSparseProbe, LDAProbe, MLPProbe, RidgeProbe, RidgeRegressionProbe

CLASSES: Any = SimpleNamespace(target="label", label_names={"label": ["no", "yes"]})
NUMBERS: Any = SimpleNamespace(target="label", label_names={"label": []})


def spec(acts: Any = CLASSES, **probe: Any) -> Any:
    return check_parameters(CurveOptions(probe=probe), acts)


def test_parameters_get_the_types_of_the_constructor() -> None:
    assert spec(name="k-sparse", k="4") == {"name": "k-sparse", "k": 4}
    assert spec(name="mlp", hidden=8, learning_rate="1e-2") == {"name": "mlp", "hidden": 8, "learning_rate": 0.01}
    assert spec(name="ridge", C=2) == {"name": "ridge", "C": 2.0}
    assert spec(name="lda", shrinkage="0.5") == {"name": "lda", "shrinkage": 0.5}
    assert spec(name="ridge", standardise="false") == {"name": "ridge", "standardise": False}
    assert spec(NUMBERS, name="ridge", standardise=False) == {"name": "ridge", "standardise": False}
    assert spec(name="lda", standardise="true") == {"name": "lda", "standardise": True}
    assert spec(name="lda", shrinkage="auto") == {"name": "lda", "shrinkage": "auto"}
    assert spec(name=None, C="2") == {"name": "logistic", "C": 2.0}
    assert spec(NUMBERS, name=None, C="2") == {"name": "ridge", "C": 2.0}
    for plain in (None, "lda"):
        assert check_parameters(CurveOptions(probe=plain), CLASSES) == plain


def test_an_instance_is_made_of_the_class_for_the_labels() -> None:
    options = CurveOptions()
    assert make_probe({"name": "k-sparse", "k": 4}, options, CLASSES).get_params() == KSparseProbe(k=4).get_params()
    assert type(make_probe({"name": "ridge", "C": 2.0}, options, CLASSES)) is RidgeProbe
    assert type(make_probe({"name": "ridge", "C": 2.0}, options, NUMBERS)) is RidgeRegressionProbe
    assert make_probe({"name": "lda", "shrinkage": 0.5}, options, CLASSES).get_params() == LDAProbe(0.5).get_params()
    assert make_probe({"name": "mlp", "hidden": 8}, options, CLASSES).get_params() == MLPProbe(8).get_params()
    assert make_probe("lda", options, CLASSES) == "lda"


@pytest.mark.parametrize(
    ("probe", "says"),
    [
        ({"name": "k-sparse", "kk": "4"}, "probe k-sparse has no parameter 'kk'; it has k, "),
        ({"name": "k-sparse", "k": "four"}, "probe k-sparse: k takes a whole number, got 'four'"),
        ({"name": "k-sparse", "k": "1.5"}, "probe k-sparse: k takes a whole number, got '1.5'"),
        ({"name": "k-sparse", "k": True}, "probe k-sparse: k takes a whole number, got True"),
        ({"name": "ridge", "C": "x"}, "probe ridge: C takes a number, got 'x'"),
        ({"name": "mean-diff", "k": "4"}, "probe mean-diff has no parameter 'k'; it has none"),
        ({"name": "k-spars", "k": "4"}, "unknown probe 'k-spars'; did you mean k-sparse"),
    ],
)
def test_what_the_constructor_does_not_take_is_refused(probe: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        spec(**probe)
    assert says in str(caught.value)


@pytest.mark.usefixtures("blank_pictures")
def test_results_with_parameters_have_a_folder_of_their_own(here: Path, store: Path) -> None:
    shutil.copytree(store, "store")
    Path("c.yaml").write_text("train-probe: {probe: {name: k-sparse, k: 4}, layer: 0, quiet: true, C: [1]}")
    assert run(["train-probe", "store", "--config", "c.yaml"]) == 0
    assert run(["train-probe", "store", "--config", "c.yaml", "--set", "train-probe.probe.k=2"]) == 0
    assert run(["train-probe", "store", "--config", "c.yaml", "--probe", "logistic"]) == 0  # which takes no k
    assert {path.name for path in Path("store/results").iterdir()} == {
        f"label-resid_pre-{probe}-layers-0-C-1" for probe in ("k-sparse-k-2", "k-sparse-k-4", "logistic")
    }
