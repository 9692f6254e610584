"""Activations of other programs: what goes in comes out bit for bit, and what cannot be used is refused by name."""

import json
import os
import re
import struct
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

import probekit as pk
from probekit.activations import ActivationSet, ImportPlan, Store, import_activations, plan_import, repair
from probekit.activations.imports import arrays as import_plan
from probekit.activations.imports import run as imports
from probekit.activations.imports.array_files import arrays_in, read_rows, scan
from probekit.activations.imports.arrays import place_of
from probekit.errors import DataError, ProbekitError, ResumeMismatch, UsageError
from probekit.options import ImportOptions
from probekit.points import Place
from probekit.tasks.load import labelled_task
from probekit.verbs.extract import extract
from probekit.verbs.train_probes import train_probes

N, D = 40, 6
SPLITS = np.array(["train", "train", "validation", "test"])[np.arange(N) % 4]
Tensors = dict[Any, Tensor]


def tensors(n_layers: int = 3, dtype: torch.dtype = torch.float32) -> Tensors:
    made = torch.Generator().manual_seed(0)
    return {("resid_pre", i): torch.randn(N, D, generator=made).to(dtype) for i in range(n_layers)}


def write_labels(path: Path, n: int = N, texts: bool = True, splits: bool = True) -> Path:
    rows = [{"label": i // 4 % 2} for i in range(n)]
    for i, row in enumerate(rows):
        row |= {"text": f"word{i % 7} number {i}"} if texts else {}
        row |= {"split": str(SPLITS[i % N])} if splits else {}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def checksums(plan: ImportPlan) -> dict[str, str]:
    return plan.source.checked(lambda n: None)["sources"]


def write_npy(folder: Path, made: Tensors, name: Callable[[Place], str] = lambda place: str(Place(*place))) -> Path:
    folder.mkdir(exist_ok=True)
    for place, x in made.items():
        np.save(folder / f"{name(place)}.npy", x.numpy())
    return folder


@pytest.fixture
def acts(tmp_path: Path) -> Path:
    return write_npy(tmp_path / "acts", tensors())


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    return write_labels(tmp_path / "labels.jsonl")


def assert_same(store: Store, made: Tensors) -> None:
    assert set(store) == set(made)
    for place, x in made.items():
        assert store[place].dtype == x.dtype
        assert torch.equal(store[place], x)


FORMS = [
    *(f"resid_pre{sep}5" for sep in "._-"),
    *(f"layer{sep}5{sep}resid_pre" for sep in "._-"),
    "resid_pre_layer_5",
    "blocks.5.hook_resid_pre",
    "hidden_states_5",
    *("layer_5", "5", "blocks.5", "model.layers.5", "transformer.h.5"),
]


def test_every_form_of_name_gives_the_same_place() -> None:
    assert {place_of(name, name, "resid_pre", 6) for name in FORMS} == {("resid_pre", 5)}
    with pytest.raises(UsageError, match=r"layer_0 names a layer and no point.*--point"):
        place_of("layer_0", "layer_0", None, None)


def test_a_tensor_of_a_file_and_a_file_of_its_own_give_the_same_store(tmp_path: Path, labels: Path) -> None:
    made = tensors()
    folder = write_npy(tmp_path / "npy", made, lambda place: f"layer_{place[1]}")
    save_file({}, folder / "empty.safetensors")  # is read, and gives nothing
    assert_same(import_activations(folder, labels=labels, out=tmp_path / "one", point="resid_pre"), made)
    save_file({f"layer_{place[1]}": x for place, x in made.items()}, tmp_path / "all.safetensors")
    assert_same(import_activations(tmp_path / "all.safetensors", labels, out=tmp_path / "two", point="resid_pre"), made)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_types_are_kept_bit_for_bit(tmp_path: Path, labels: Path, dtype: torch.dtype) -> None:
    made = tensors(dtype=dtype)
    made["resid_pre", 0][0, :3] = torch.tensor([-0.0, 1e-40, 6e-8], dtype=dtype)
    save_file({str(Place(*place)): x for place, x in made.items()}, tmp_path / "all.safetensors")
    store = import_activations(tmp_path / "all.safetensors", labels, out=tmp_path / "store")
    assert_same(store, made)
    bits = store["resid_pre", 0][0].contiguous().view(torch.uint8)
    assert torch.equal(bits, made["resid_pre", 0][0].contiguous().view(torch.uint8))


@pytest.mark.parametrize(("axis", "order", "layers"), [(0, "C", None), (1, "F", None), (1, "C", [8, 4, 2])])
def test_stacked_layers_come_apart(
    tmp_path: Path, labels: Path, axis: int, order: Any, layers: list[int] | None
) -> None:
    made = tensors()
    np.save(tmp_path / "x.npy", np.asarray(np.stack([x.numpy() for x in made.values()], axis=axis), order=order))
    how: dict[str, Any] = {"point": "resid_mid", "stack_axis": axis, "layers": layers}
    store = import_activations(tmp_path / "x.npy", labels, out=tmp_path / "store", **how)
    assert_same(store, dict(zip([("resid_mid", i) for i in layers or (0, 1, 2)], made.values(), strict=True)))
    assert store.n_layers == (9 if layers else 3)


@pytest.mark.parametrize(("order", "dtype"), [("C", ">f4"), ("F", ">f8"), ("F", "<f2"), ("C", ">f2")])
def test_byte_order_and_axis_order_are_read_right(tmp_path: Path, labels: Path, order: Any, dtype: str) -> None:
    x = np.random.default_rng(0).normal(size=(N, D)).astype(dtype)
    np.save(tmp_path / "resid_pre.0.npy", np.asarray(x, order=order))
    kept = np.float16 if dtype.endswith("2") else np.float32
    store = import_activations(tmp_path / "resid_pre.0.npy", labels, out=tmp_path / "store")
    assert_same(store, {("resid_pre", 0): torch.from_numpy(x.astype(kept))})


@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    data=st.data(),
    order=st.sampled_from("CF"),
    dtype=st.sampled_from(["<f4", ">f8"]),
)
def test_any_block_of_rows_is_that_of_numpy(
    tmp_path_factory: pytest.TempPathFactory, shape: list[int], data: st.DataObject, order: Any, dtype: str
) -> None:
    path = tmp_path_factory.mktemp("block") / "x.npy"
    x = np.random.default_rng(0).normal(size=shape).astype(dtype)
    np.save(path, np.asarray(x, order=order))
    axis = data.draw(st.integers(0, len(shape) - 1))
    start = data.draw(st.integers(0, shape[axis] - 1))
    stop = data.draw(st.integers(start + 1, shape[axis]))
    expected = np.take(x, range(start, stop), axis=axis)
    assert np.array_equal(read_rows(arrays_in(path)[0], axis, start, stop).numpy(), expected)


def test_what_extract_keeps_comes_back_and_probes_find_the_same(tmp_path: Path, model, letters) -> None:
    task = letters(60)
    there = extract(model, task, points=["resid_pre", "attn_out"])
    assert isinstance(there, ActivationSet)
    folder = tmp_path / "acts"
    folder.mkdir()
    for place, x in there.items():
        np.save(folder / f"{place}.npy", x.numpy())
    rows = [
        {"text": text, "label": task.label_names["odd"][k], "split": split}
        for text, k, split in zip(task.inputs, task.labels["odd"], task.splits.tolist(), strict=True)
    ]
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    store = pk.import_activations(
        folder, tmp_path / "labels.jsonl", out=tmp_path / "store", n_layers=3, position="last"
    )
    assert_same(store, dict(there))
    assert store.points == there.points
    assert store.curve("resid_pre") == there.curve("resid_pre")
    here, origin = (train_probes(acts, probe="ridge", C=[0.1, 1.0]) for acts in (store, there))
    assert [layer.metrics for layer in here.layers] == [layer.metrics for layer in origin.layers]
    assert [layer.intervals for layer in here.layers] == [layer.intervals for layer in origin.layers]
    same, others = ([one for one in each.baselines if one.name != "length"] for each in (here, origin))
    assert same == others  # an import does not know how many tokens a text has, which is part of its length
    assert here.meta["position"] == "last"


def test_hidden_states_are_inputs_and_the_last_is_the_final_norm(tmp_path: Path, labels: Path) -> None:
    made = tensors(4)
    folder = write_npy(tmp_path / "acts", made, lambda p: f"hidden_states_{p[1]}")
    with pytest.raises(UsageError, match=r"hidden_states_0.*final norm.*--n-layers"):
        plan_import(folder, ImportOptions(labels))
    with pytest.raises(DataError, match=r"hidden state 3, and a model of 2 blocks has 0\.\.2"):
        plan_import(folder, ImportOptions(labels, n_layers=2))
    *inputs, last = made.values()
    expected: Tensors = {("resid_pre", i): x for i, x in enumerate(inputs)}
    expected["ln_final", None] = last
    assert_same(import_activations(folder, labels, out=tmp_path / "one", n_layers=3), expected)
    np.save(tmp_path / "hidden_states.npy", np.stack([x.numpy() for x in made.values()]))
    store = import_activations(tmp_path / "hidden_states.npy", labels, out=tmp_path / "two", n_layers=3, stack_axis=0)
    assert_same(store, expected)
    assert store.points == ["resid_pre", "ln_final"]


def test_the_output_of_the_last_block_is_not_guessed(tmp_path: Path, labels: Path) -> None:
    made = tensors() | {("resid_post", 2): tensors()["resid_pre", 0] + 1}
    folder = write_npy(tmp_path / "acts", made)
    with pytest.raises(UsageError, match=r"resid_post\.2 is drawn as the end of resid_pre.*--n-layers"):
        plan_import(folder, ImportOptions(labels))
    known, longer = (
        plan_import(folder, ImportOptions(labels, n_layers=3)),
        plan_import(folder, ImportOptions(labels, n_layers=12)),
    )
    assert (known.points, longer.points) == (["resid_pre"], ["resid_pre", "resid_post"])


def test_labels_may_be_in_the_folder_of_the_activations(tmp_path: Path, acts: Path) -> None:
    y = np.arange(N) // 4 % 2
    np.save(acts / "labels.npy", y)
    save_file({"labels": torch.from_numpy(y), "resid_pre.0": tensors()["resid_pre", 0]}, tmp_path / "x.safetensors")
    np.save(tmp_path / "names.npy", np.array(["no", "yes"])[y])
    both = [(acts, None), (tmp_path / "x.safetensors", None), (acts, tmp_path / "names.npy")]
    stores = [import_activations(given_, y_of, out=tmp_path / f"store{i}") for i, (given_, y_of) in enumerate(both)]
    for store in stores:
        assert np.array_equal(store.labels["label"], y)
        assert {split: int((store.splits == split).sum()) for split in ("train", "validation", "test")} == {
            "train": 32,
            "validation": 4,
            "test": 4,
        }
    assert [store.label_names["label"] for store in stores] == [["0", "1"], ["0", "1"], ["no", "yes"]]


def test_without_texts_there_is_no_bag_of_words_and_it_says_so(tmp_path: Path, acts: Path) -> None:
    labels = write_labels(tmp_path / "labels.jsonl", texts=False)
    store = import_activations(acts, labels, out=tmp_path / "store")
    results = train_probes(store, probe="mean-diff")
    assert [baseline.name for baseline in results.baselines] == ["majority", "embedding"]
    assert "No bag-of-words baseline: the activations were imported without texts." in results.summary()
    assert "token not recorded" in results.summary()
    with_texts = import_activations(acts, write_labels(tmp_path / "texts.jsonl"), out=tmp_path / "other")
    names = [baseline.name for baseline in train_probes(with_texts, probe="mean-diff").baselines]
    assert names == ["majority", "bag-of-words", "bag-of-bigrams", "length", "embedding"]


def test_groups_stay_together_and_splits_are_kept_to(tmp_path: Path) -> None:
    rows = [f"{i % 2},{i // 4},{'train' if i < 30 else 'dev'}" for i in range(N)]
    (tmp_path / "y.csv").write_text("\n".join(["label,city,split", *rows]) + "\n")
    task = labelled_task(tmp_path / "y.csv", ImportOptions(group_column="city"), "y")
    assert (task.splits[30:] == "validation").all()
    assert set(task.splits[:30]) == {"train", "test"}
    assert task.groups is not None
    for city in range(7):
        assert len(set(task.splits[4 * city : 4 * city + 4])) == 1


def test_a_column_called_split_is_one_where_it_names_splits_as_in_load_task(tmp_path: Path) -> None:
    rows = [f"{i % 2},{i % 2}" for i in range(N)]
    taken = pytest.warns(UserWarning, match="column 'split' of y.csv is not read as splits")
    for header, label, heard in (("label,split", None, taken), ("kind,Split", "Split", nullcontext())):
        (tmp_path / "y.csv").write_text("\n".join([header, *rows]) + "\n")
        with heard:
            task = labelled_task(tmp_path / "y.csv", ImportOptions(label_column=label), "y")
        assert task.info["splits_from"] == ""
        assert task.info["carved_from_train"] == ["validation", "test"]


def test_the_same_import_is_the_same_store_and_another_is_refused(tmp_path: Path, acts: Path, labels: Path) -> None:
    import_activations(acts, labels, out=tmp_path / "store")
    before = {path: path.stat().st_ino for path in (tmp_path / "store").rglob("*")}
    import_activations(acts, labels, out=tmp_path / "store")
    assert {path: path.stat().st_ino for path in (tmp_path / "store").rglob("*")} == before
    for what, change in [
        ("model_name", {"model_name": "b"}),
        ("dtype", {"dtype": "float16"}),
        ("position", {"position": 3}),
        ("n_layers", {"n_layers": 7}),
    ]:
        with pytest.raises(ResumeMismatch, match=what):
            import_activations(acts, labels, out=tmp_path / "store", **change)
    np.save(acts / "resid_pre.1.npy", np.ones((N, D), dtype=np.float32))
    with pytest.raises(ResumeMismatch, match=r"sources.resid_pre\.1\.npy"):
        import_activations(acts, labels, out=tmp_path / "store")


def test_broken_shards_are_taken_out_and_the_same_import_makes_them_again(
    tmp_path: Path, acts: Path, labels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_plan, "SHARD_BYTES", 7 * 3 * D * 4)
    store = import_activations(acts, labels, out=tmp_path / "store")
    before = {place: x.clone() for place, x in store.items()}
    shard = sorted((tmp_path / "store" / "shards").iterdir())[0]
    shard.unlink()
    done = repair(tmp_path / "store")
    assert len(done.removed) == 1
    assert not done.complete
    again = import_activations(acts, labels, out=tmp_path / "store")
    assert shard.exists()
    assert all(torch.equal(again[place], x) for place, x in before.items())
    assert repair(tmp_path / "store").removed == []


def test_a_file_that_is_written_meanwhile_is_noticed(tmp_path: Path, acts: Path, labels: Path) -> None:
    plan = plan_import(acts, ImportOptions(labels))
    assert checksums(plan)
    np.save(acts / "resid_pre.1.npy", np.zeros((N, D), dtype=np.float32))
    with pytest.raises(DataError, match=r"resid_pre\.1\.npy' was written while it was imported"):
        imports.run_import(plan, tmp_path / "store")


def test_memory_holds_a_shard_and_not_a_file(
    tmp_path: Path, acts: Path, labels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_plan, "SHARD_BYTES", 5 * 3 * D * 4)
    monkeypatch.setattr("probekit.activations.imports.array_files.CHUNK", 64)
    sizes: list[int] = []

    class Noted(bytearray):
        def __init__(self, n: int):
            sizes.append(n)
            super().__init__(n)

    monkeypatch.setattr("probekit.activations.imports.array_files.bytearray", Noted, raising=False)
    assert_same(import_activations(acts, labels, out=tmp_path / "store"), tensors())
    assert max(sizes) <= max(128, 5 * D * 4)


@pytest.mark.parametrize(
    ("value", "dtype", "says"),
    [
        (np.nan, None, r"NaN in 'resid_pre\.1\.npy' \(resid_pre\.1\), first in row 17 \(example 'labels:17'\)"),
        (np.inf, None, "infinity in .* row 17"),
        (1e5, "float16", r"1e\+05 in .* row 17 .* is more than float16 holds \(6\.55e\+04\)"),
        (1e300, None, r"1e\+300 in .* row 17 .* is more than float32 holds"),
    ],
)
def test_values_that_cannot_be_kept_are_found_before_a_store_is_begun(
    tmp_path: Path, acts: Path, labels: Path, value: float, dtype: str | None, says: str
) -> None:
    x = np.zeros((N, D), dtype=np.float64)
    x[17, 2] = x[30, 0] = value
    np.save(acts / "resid_pre.1.npy", np.asarray(x, order="F"))
    with pytest.raises(DataError, match=says):
        import_activations(acts, labels, out=tmp_path / "store", dtype=dtype)
    assert not (tmp_path / "store").exists()


def safetensors_bytes(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(*offsets: int, shape: tuple[int, ...] = (N, D), dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


SIZE = N * D * 4
LYING: dict[str, tuple[bytes, str]] = {  # the rest is the header's own test
    "huge": (safetensors_bytes({}, length=2**63), "header claims 9,223,372,036,854,775,808 bytes"),
    "no json": (safetensors_bytes(b"{"), "damaged"),
    "long": (safetensors_bytes({"resid_pre.0": entry(0, SIZE)}, b"x" * (SIZE + 1)), "its header describes"),
    "type": (
        safetensors_bytes({"resid_pre.0": entry(0, 240, dtype="F8_E4M3")}, b"x" * 240),
        "F8_E4M3, which is not",
    ),
}


@pytest.mark.parametrize("what", LYING)
def test_a_header_that_lies_is_not_believed(tmp_path: Path, labels: Path, what: str) -> None:
    data, says = LYING[what]
    (tmp_path / "x.safetensors").write_bytes(data)
    with pytest.raises(DataError, match=says) as caught:
        import_activations(tmp_path / "x.safetensors", labels, out=tmp_path / "store")
    assert "x.safetensors" in str(caught.value)


def npy_bytes(header: str, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text + data


NPY = "{{'descr': {!r}, 'fortran_order': False, 'shape': {!r}}}"
BAD_NPY = {
    "empty": (b"", "damaged"),
    "version": (npy_bytes(NPY.format("<f4", (N, D)), version=b"\x09\x00"), "format version"),
    "short": (npy_bytes(NPY.format("<f4", (N, D)), b"x" * (SIZE - 4)), "cut short"),
    "huge": (npy_bytes(NPY.format("<f4", (10**30, D))), "shape"),
    "more than the file": (npy_bytes(NPY.format("<f4", (10**18, D))), "cut short"),
    "nothing of many": (npy_bytes(NPY.format("<U0", (N,))), "damaged"),
    "header": (npy_bytes(" " * 10_001), "its header claims 10,002 bytes"),
    "negative": (npy_bytes(NPY.format("<f4", (-N, -D)), b"x" * SIZE), "damaged"),
    "code": (npy_bytes("__import__('os').system('true')"), "damaged"),
    "bfloat16 of numpy": (npy_bytes(NPY.format("|V2", (N, D)), b"x" * (SIZE // 2)), "save bfloat16 in a .safetensors"),
    "wide": (npy_bytes(NPY.format("<f4", (N, 0))), "holds no numbers"),
    "complex": (npy_bytes(NPY.format("<c8", (N, D)), b"x" * (2 * SIZE)), "complex64, expected .* floating point"),
    "integers": (npy_bytes(NPY.format("<i8", (N, D)), b"x" * (2 * SIZE)), "int64, expected .* floating point"),
    "one axis": (npy_bytes(NPY.format("<f4", (N,)), b"x" * (4 * N)), r"the shape \[40\], expected \[examples, width\]"),
    "rows": (npy_bytes(NPY.format("<f4", (N + 1, D)), b"x" * (SIZE + 4 * D)), "has 41 rows .* expected 40"),
    "heads": (npy_bytes(NPY.format("<f4", (N, 2, 3)), b"x" * SIZE), "heads side by side"),
}


@pytest.mark.parametrize("what", BAD_NPY)
def test_a_npy_file_that_cannot_be_used(tmp_path: Path, labels: Path, what: str) -> None:
    data, says = BAD_NPY[what]
    (tmp_path / "resid_pre.0.npy").write_bytes(data)
    with pytest.raises(ProbekitError, match=says) as caught:
        import_activations(tmp_path / "resid_pre.0.npy", labels, out=tmp_path / "store")
    assert "resid_pre.0.npy" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_objects_are_never_unpickled(tmp_path: Path, labels: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "exploded"),)

    for name in ("resid_pre.0.npy", "labels.npy"):
        np.save(tmp_path / name, np.array([[Bomb()] * D] * N, dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="Python objects, a pickle, which is never read"):
        import_activations(tmp_path / "resid_pre.0.npy", labels, out=tmp_path / "store")
    with pytest.raises(DataError, match="Python objects"):
        import_activations(tmp_path / "resid_pre.0.npy", tmp_path / "labels.npy", out=tmp_path / "store")
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("name", ["layer_0.pt", "acts.bin", "x.pkl", "x.PTH", "x.npz"])
def test_pickles_and_archives_are_refused_with_what_to_do(acts: Path, labels: Path, name: str) -> None:
    (acts / name).write_bytes(b"\x80")
    with pytest.raises(DataError, match=re.escape(name) + r".*(save_file|np\.save)"):
        plan_import(acts, ImportOptions(labels))


ZEROS, STACK = (np.zeros(shape, dtype=np.float32) for shape in ((N, D), (N, N, D)))
NO_PLACE = r"gives no place.*blocks\.3\.hook_resid_pre"
REFUSED: list[tuple[dict[str, np.ndarray], dict[str, Any], type[ProbekitError], str]] = [
    ({"attention_mask": ZEROS}, {}, DataError, NO_PLACE),
    ({"resid_prae.0": ZEROS}, {}, DataError, NO_PLACE),
    ({"x\n\x1b[31m.0": ZEROS}, {}, DataError, NO_PLACE),
    ({"resid_pre": ZEROS}, {}, DataError, "gives the point resid_pre and no layer"),
    ({"embed.0": ZEROS}, {}, DataError, "embed, which has no layers"),
    ({"resid_pre.12": ZEROS}, {"n_layers": 12}, DataError, r"layer 12 is not in 0\.\.11"),
    ({"blocks.1.hook_resid_pre": ZEROS}, {}, DataError, r"hold resid_pre\.1: 'blocks.1.hook_.*' and 'resid_pre.1.npy'"),
    ({}, {"point": "resid_post"}, UsageError, "every name gives its point"),
    ({}, {"point": "resid_prae"}, UsageError, "unknown point 'resid_prae'"),
    ({}, {"point": "resid_pre.3"}, UsageError, "without its layer"),
    ({}, {"stack_axis": 0}, UsageError, "no array has three axes, so --stack-axis"),
    ({}, {"stack_axis": 2}, UsageError, "0 or 1"),
    ({}, {"layers": [0]}, UsageError, "no array has three axes, so --layers"),
    ({}, {"n_layers": 0}, UsageError, r"in 1\.\.1000"),
    ({}, {"n_layers": 1 << 40}, UsageError, r"in 1\.\.1000"),
    ({}, {"position": "lats"}, UsageError, "did you mean last"),
    ({}, {"position": "per example"}, UsageError, "expected the tokens to read"),
    ({}, {"dtype": "int8"}, UsageError, "unknown dtype"),
    ({"x": STACK}, {"point": "resid_pre"}, UsageError, "--stack-axis"),
    ({"x": STACK}, {"stack_axis": 0}, UsageError, "gives no point"),
    ({"x": STACK}, {"point": "q", "stack_axis": 1, "layers": [0, 1]}, UsageError, "names 2, and .* has 40 on axis 1"),
    ({"z.3": STACK}, {"stack_axis": 1}, DataError, "its name gives one layer"),
]


@pytest.mark.parametrize(("arrays", "how", "kind", "says"), REFUSED)
def test_names_and_options_that_cannot_be(
    acts: Path, labels: Path, arrays: dict[str, np.ndarray], how: dict[str, Any], kind: type[ProbekitError], says: str
) -> None:
    for name, x in arrays.items():
        np.save(acts / f"{name}.npy", x)
    with pytest.raises(kind, match=says) as caught:
        plan_import(acts, ImportOptions(labels, **how))
    assert str(caught.value).isprintable()


def test_places_that_hold_no_activations(tmp_path: Path, labels: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"holds no .* of activations, but nothing"):
        plan_import(tmp_path / "empty", ImportOptions(labels))
    with pytest.raises(UsageError, match="no file or folder"):
        plan_import(tmp_path / "nowhere", ImportOptions(labels))
    with pytest.raises(UsageError, match=r"no labels: name their file with --labels"):
        plan_import(write_npy(tmp_path / "acts", tensors()), ImportOptions())
    with pytest.raises(DataError, match="cannot be read: No such file"):
        plan_import(tmp_path / "acts", ImportOptions(tmp_path / "none.npy"))


def test_links_to_files_are_followed_and_other_things_are_not_opened(tmp_path: Path, acts: Path, labels: Path) -> None:
    (tmp_path / "links").mkdir()
    for path in acts.iterdir():
        (tmp_path / "links" / path.name).symlink_to(path)
    assert_same(import_activations(tmp_path / "links", labels, out=tmp_path / "store"), tensors())
    (acts / "resid_pre.3.npy").symlink_to(tmp_path / "gone")
    with pytest.raises(DataError, match=r"'.*resid_pre.3.npy' cannot be read"):
        plan_import(acts, ImportOptions(labels))
    (acts / "resid_pre.3.npy").unlink()
    os.mkfifo(acts / "resid_pre.3.npy")
    with pytest.raises(DataError, match="not a regular file"):
        plan_import(acts, ImportOptions(labels))


def test_other_files_are_left_aside_and_named(acts: Path) -> None:
    labels = write_labels(acts / "labels.jsonl")
    (acts / "README.md").write_text("hello")
    (acts / ".DS_Store").write_text("")
    assert plan_import(acts, ImportOptions(labels)).left_aside == ["README.md"]


BAD_LABELS = {
    "unlabelled": ("label\n0\n-1\n", "line 3: expected a label of 'label', got -1, which .*; remove the row from"),
    "missing": ("label\n0\nNA\n", "line 3: expected a label"),
    "split": ("label,split\n0,train\n1,tset\n", "line 3: expected a split .* got 'tset'"),
    "no train": ("label,split\n0,test\n1,test\n", "no row is in the split train"),
    "text": ("label,text\n0,a\n1,\n", "line 3: expected a text"),
    "ragged": ("label,text\n0,a\n1\n", "line 3: expected 2 cells"),
    "one class": ("label\n" + "1\n" * N, "needs two classes"),
    "too few": ("label\n0\n1\n", "every split needs every class"),
    "regression": ("label\n0.5\n0.5\n", "needs two different values"),
    "column": ("klass\n0\n1\n", "--label-column"),
}


@pytest.mark.parametrize("what", BAD_LABELS)
def test_labels_that_cannot_be_used(tmp_path: Path, acts: Path, what: str) -> None:
    text, says = BAD_LABELS[what]
    (tmp_path / "y.csv").write_text(text)
    with pytest.raises(ProbekitError, match=says) as caught:
        plan_import(acts, ImportOptions(tmp_path / "y.csv"))
    assert "--on-bad-row" not in str(caught.value)


@pytest.mark.parametrize(
    ("y", "says"),
    [
        (np.zeros((N, 2), dtype=np.int64), r"must hold labels \[N\]"),
        (np.full(N, -1), "row 0: expected a label of 'label', got -1"),
        (np.full(N, np.nan), "row 0: expected a label"),
        (np.zeros(N, dtype=np.complex64), "must hold labels"),
        (np.arange(N - 1) % 2, r"has 40 rows .* expected 39, one for each label"),
    ],
)
def test_arrays_of_labels_that_cannot_be_used(tmp_path: Path, acts: Path, y: np.ndarray, says: str) -> None:
    np.save(tmp_path / "y.npy", y)
    with pytest.raises(DataError, match=says):
        plan_import(acts, ImportOptions(tmp_path / "y.npy"))
    with pytest.raises(UsageError, match="--group-column needs a table"):
        plan_import(acts, ImportOptions(tmp_path / "y.npy", group_column="city"))


def test_checksums_are_those_of_the_files(tmp_path: Path, acts: Path, labels: Path) -> None:
    import hashlib

    save_file({f"resid_mid.{i}": torch.randn(N, D + i) for i in range(3)}, acts / "x.safetensors")
    path = acts / "x.safetensors"
    expected = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in acts.iterdir()}
    assert checksums(plan_import(acts, ImportOptions(labels))) == expected
    assert scan(path, arrays_in(path), lambda *_: None, lambda _: None) == expected["x.safetensors"]


def test_types_that_differ_meet_in_float32(tmp_path: Path, labels: Path) -> None:
    made = tensors()
    mixed = {"resid_pre.0": made["resid_pre", 0].half(), "resid_pre.1": made["resid_pre", 1].bfloat16()}
    save_file(mixed, tmp_path / "x.safetensors")
    store = import_activations(tmp_path / "x.safetensors", labels, out=tmp_path / "store")
    assert_same(store, {("resid_pre", i): x.float() for i, x in enumerate(mixed.values())})
