"""Every refusal of the command line: (exit code, what is typed, part of the one line of error); nothing is written.

Words in capitals are what fixtures made: MODEL, DATA, and stores of both: STORE, ALL (every token), HEADS (z), COLUMNS
(columns of the data) and PROBED (with results). ON is
`--model MODEL --dataset`, JOB is `ON DATA`. Other files are of `bench`.
"""

import contextlib
import gc
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from chat_templates import HOSTILE

from probekit.cli.main import run
from probekit.machine import program
from probekit.options.curve import PROBE_NAMES, WITHOUT_C
from probekit.options.probe import LOSSES, METRIC_NAMES
from probekit.probes import PROBES, REGRESSORS, SEQUENCE_PROBES

EARLY = r"""
2 extrakt                                              -> Did you mean 'extract'
2 extract --modle x                                    -> --model
2 extract                                              -> Missing option '--model'
2 extract --model m                                    -> Missing option '--dataset'
2 extract --model m --dataset d --limit few            -> limit must be a whole number, 1 or more; got 'few'
2 extract --model m --dataset d --limit 1e9            -> limit must be a whole number, 1 or more; got '1e9'
2 extract --model m --dataset d --limit -1             -> limit must be a whole number, 1 or more; got -1
2 extract --model m --dataset d --batch-tokens 0       -> batch_tokens must be a whole number
2 extract --model m --dataset d --on-long wrap         -> (--on-long) is one of cut, error; got 'wrap'
2 extract --model m --dataset d --via transfomers      -> got 'transfomers'; did you mean transformers?
2 extract --model m --dataset d --device-map atuo      -> is one of auto; got 'atuo'; did you mean auto?
2 extract --model m --dataset d --dtype bf32           -> unknown type 'bf32'; did you mean fp32
2 extract --model m --dataset d --dry-run --picture x.xyz -> --picture ends in .png, .svg or .pdf
2 extract --model m --dataset d --store-dtype int8     -> unknown type 'int8'
2 extract --model m --dataset d --position middle      -> got 'middle'; known are: last, first, mean
2 extract JOB --points nope                            -> unknown point 'nope'
2 extract JOB --points resid_per                       -> did you mean resid_pre
2 extract JOB --points resid_pre.1                     -> give points without a layer, such as
2 extract JOB --points ,                               -> no points given; give one or more
2 extract JOB --points encoder.resid_pre,decoder.resid_pre -> one command with --points
2 extract --model dialogue-gpt --dataset dialogue --points resid_pr -> unknown point 'resid_pr'; did you mean
2 extract --model dialogue-gpt --dataset d --points decoder.cross_attn_pattern -> has a row for each source token
2 extract JOB --layers some                            -> layers are all, 3, 0,4,8 or 2-6
2 extract JOB --revision main                          -> --revision
2 extract --model gpt3 --dataset broken.csv            -> did you mean gpt2
2 extract --model agrement-gpt2 --dataset DATA         -> did you mean agreement-gpt2
2 extract ON sst3                                      -> did you mean sst2
2 extract ON absent.csv                                -> not a file, a folder or an owner/name on the Hub
2 extract JOB --text-column texts                      -> did you mean 'text'?
2 extract JOB --label-column lable                     -> did you mean 'label'?
2 extract JOB --stats --stats-only                     -> give one of them
2 extract --model m --dataset d --part 3/2             -> such as 2/4; got '3/2'
2 extract --model m --dataset d --part 1/2 --devices cpu -> exclude each other
2 extract --model m --dataset d --part 1/2 --generate 3 -> texts are continued once, by one model
2 extract --model m --dataset d --stats-only --devices cpu -> --stats-only --part 1/4
2 extract --model m --dataset d --check all            -> hash, size
2 extract --model m --dataset d --workers 2            -> --engine ray
2 extract --model m --dataset d --engine ray --workers 3:2 -> MIN:MAX
2 extract --model m --dataset d --engine ray --gpus-per-worker 1.5 -> a share such as 0.5
2 extract JOB --set extract.limit=many                 -> limit must be a whole number
2 extract JOB --set extract.limit=0                    -> limit must be a whole number
2 extract JOB --set extract.on-long=wrap               -> is one of cut, error; got 'wrap'
2 extract JOB --set train-probe.layer=3                -> is for 'train-probe', and this command is
2 extract JOB --set extract.lim=3                      -> did you mean limit
2 extract JOB --config absent.yaml                     -> cannot read the config 'absent.yaml'
2 extract JOB --generate 4 --no-stop --stop a          -> give one of them
2 extract JOB --no-stop                                -> no_stop (--no-stop) needs generate (--generate): they are for
2 extract JOB --model-seed 3                           -> --model-seed) needs random_init (--random-init)
2 extract JOB --picture p.png                          -> --picture) needs dry_run (--dry-run)
2 extract JOB --generate 4 --revision a,b              -> and several checkpoints (--revision) exclude each other
2 extract JOB --devices cpu --device cpu               -> each says where the work runs
2 extract JOB --generate 4 --top-p 2                   -> top_p
2 extract JOB --bos --edits                            -> --edits
2 extract ON chats.jsonl --text-column label --messages-column messages -> not both
4 extract ON broken.csv --out file                     -> 'file' is a file, expected a folder; name another
4 extract ON broken.csv --out file/below               -> 'file' is a file, expected a folder; name another
2 import nowhere                                       -> no file or folder
2 import acts --labels y.csv --layers 4-2-1 --stack-axis 0 -> 0,4,8 or 2-6
2 import MODEL --point nope                            -> nope
2 import MODEL --stack-axis 2                          -> is the axis of the layers, 0 or 1; got 2
2 import MODEL --n-layers 0                            -> --n-layers
2 import MODEL --verify -1                             -> verify must be a whole number, 0 or more; got -1
3 verify nope                                          -> no store
3 verify nothing                                       -> no store
3 repair nope                                          -> no store
3 ls elsewhere                                         -> no folder 'elsewhere'
4 demo --out file                                      -> is a file
2 points --model nope                                  -> no model 'nope'
2 selftest --revision main                             -> revision='main' (--revision) needs model (--model)
2 selftest --via transformers                          -> (--via) needs model (--model)
2 selftest --device-map auto                           -> (--device-map) needs model (--model)
2 selftest --model MODEL --via jax                     -> jax
2 selftest --model MODEL --device-map 0                -> 0
2 selftest --model MODEL --quantize 3bit               -> 3bit
2 generate --model nope --prompt text                  -> no model 'nope'
2 generate --model MODEL                               -> give --prompt with a text, or --tokens
2 generate --model MODEL --prompt a --tokens 1         -> exclude each other
2 generate --model MODEL --tokens 1,x                  -> --tokens takes ids with commas between them
2 generate --model MODEL --prompt a --temperature -1   -> temperature must be 0 (the likeliest token)
2 generate --model MODEL --prompt a --temperature 1 --top-p 1.5 -> top_p must be above 0 and at most 1; got 1.5
2 generate --model MODEL --prompt a --temperature 1 --top-k 0 -> top_k must be a whole number, 1 or more; got 0
2 generate --model MODEL --prompt a --top-k 5          -> give a temperature above 0
2 generate --model MODEL --prompt a --stop a --no-stop -> give one of them
2 generate --model MODEL --prompt a --max-new-tokens 0 -> max_new_tokens must be a whole number
2 params gpt3                                          -> did you mean gpt2
2 params gpt2 --context 0                              -> --context is a whole number above 0; got 0
2 params gpt2 --batch -3                               -> --batch is a whole number above 0; got -3
2 params gpt2 --dtype bf8                              -> did you mean bf16
2 params --compare gpt2                                -> --compare takes two or more models; got 'gpt2'
2 params --compare gpt2 gpt2                           -> --compare takes two or more models; got 'gpt2'
2 params gpt2 gpt2-xl                                  -> or several with --compare; got 'gpt2', 'gpt2-xl'
2 params gpt2 --out x.png                              -> needs compare (--compare): one model has no picture
2 params counting-gpt --revision main                  -> 'counting-gpt' is trained here
2 params                                               -> Missing argument
3 params empty                                         -> it has no config.json
2 train-model                                          -> no model is named; give a name
2 train-model counting-gtp                             -> did you mean counting-gpt
2 train-model counting-gpt --steps 0                   -> steps must be a whole number, 1 or more; got 0
2 train-model counting-gpt --learning-rate nan         -> learning_rate must be a positive, finite number
2 train-model counting-gpt --steps x                   -> steps must be a whole number, 1 or more; got 'x'
2 train-probe --C 1,x                                  -> --C takes numbers above 0
2 train-probe --C 1,-2                                 -> --C takes
2 train-probe --C nan                                  -> --C takes
2 train-probe a b                                      -> unexpected extra argument
3 train-probe                                          -> probekit extract
3 train-probe absent                                   -> make one with probekit extract
2 train-probe STORE --metric acc                       -> unknown metric 'acc'
2 train-probe STORE --metric acuracy                   -> did you mean accuracy
2 train-probe STORE --metric brier                     -> brier
2 train-probe STORE --check hsah                       -> hash
2 train-probe STORE --probe logistc                    -> did you mean logistic
2 train-probe STORE --probe lda,mean-dif               -> unknown probe 'mean-dif'
2 train-probe STORE --probe mean-diff --C 1            -> the probe mean-diff has no C; leave it out
2 train-probe STORE --probe logistic --C inf           -> --C
2 train-probe STORE --layer 3-1                        -> 3-1
2 train-probe STORE --layer 12                         -> layer 12 is not in 0..2
2 train-probe STORE --C 1e300                          -> 1e
4 train-probe STORE --out file                         -> is a file
2 train-probe STORE --point resid_mid                  -> there are resid_pre 0-2, resid_post 2, attn_out 0-2
2 train-probe STORE --point resid_pre,resid_mid        -> resid_mid
2 train-probe STORE --point resid_per                  -> did you mean resid_pre
2 train-probe STORE --point resid_pre.1                -> resid_pre
2 train-probe STORE --position first                   -> the only one is 'last': leave it out, or extract
2 train-probe STORE --controls -1                      -> controls must be a whole number, 0 or more; got -1
2 train-probe STORE --folds 2                          -> 3
2 train-probe STORE --folds 3 --drop-leaks             -> folds keep repeated and nearly repeated
2 train-probe STORE --baseline randm                   -> unknown baseline 'randm'; give --baseline random-init
2 train-probe STORE --baseline prompted:               -> unknown baseline 'prompted:'
2 train-probe STORE --ensemble --folds 3               -> it is of the layers of a curve, chosen on its validation rows
2 train-probe STORE --shots 4                          -> shots=4 (--shots) needs --baseline prompted
2 train-probe STORE --baseline scores:x.csv --question 'Is it?' -> (--question) needs --baseline prompted
2 train-probe STORE --baseline prompted --answers yes,yes -> two of the answers (--answers) are the same
2 train-probe STORE --baseline prompted --answers yes  -> one for each class in its order
2 train-probe STORE --baseline prompted --by head      -> (--by) exclude each other: black boxes are baselines of curves
2 train-probe STORE --baseline scores:x.csv --by position -> black boxes are baselines of curves
2 train-probe STORE --width 0                          -> width
2 train-probe STORE --format gif                       -> format
2 train-probe STORE --title a --no-title               -> title
2 train-probe STORE --by layer                         -> by (--by) is one of
2 train-probe STORE --by position --least-texts 0      -> least
2 train-probe STORE --by position --concatenate        -> and concatenate (--concatenate) exclude each other
2 train-probe STORE --by head --projection             -> a projection draws one layer of one curve
2 train-probe STORE --aggregate top                    -> top-k, softmax, fitted-softmax, last; got 'top'
2 train-probe STORE --aggregate max --by position      -> leave one of the two out
2 train-probe STORE --probe k-sparse --set train-probe.layer.k=4 -> train-probe.layer has no parameters
2 train-probe STORE --config c.yaml                    -> expected a name and its parameters
2 causal STORE --method stare                          -> did you mean steer
2 causal STORE --answers is,is                         -> must differ
2 causal STORE --at everywhere                         -> at (--at)
2 causal STORE --scale 0                               -> --scale
2 causal STORE --answers g,b --scale 1,x               -> --scale takes numbers
3 causal nowhere                                       -> nowhere
2 transfer                                             -> Missing argument
2 transfer STORE                                       -> two tasks or more; got 1
4 transfer STORE STORE --out file                      -> is a file
2 transfer STORE STORE --layer 99                      -> layer 99
3 transfer nowhere elsewhere                           -> nowhere
"""
"""Refused by what is typed, or by the manifest of a store, before torch is imported."""

LATE = r"""
2 import acts                                          -> --labels
2 import acts --labels y.csv --verify 3                -> name the model with --model
3 import bad.pt --labels y.csv                         -> is a pickle
3 import resid_pre.0.npy --labels y.csv                -> NaN in 'resid_pre.0.npy'
2 import acts --labels years.csv --max-classes 20      -> --regression
4 import acts --labels y.csv --out folder              -> holds files that are not of a store
2 extract --model agreement-gpt2 --dataset agreement --header -> 'agreement' is built in, not a file; leave --header
2 extract ON two.jsonl --header                        -> --header is for .csv, .tsv
2 extract JOB --layers 12                              -> layer 12 is not in 0..2
2 extract JOB --layers 0,3                             -> layer 3 is not in 0..2
2 extract JOB --device tpu7                            -> give auto, cpu, cuda, cuda:1 or mps
2 extract JOB --generate 4 --layers 77                 -> 77
2 extract JOB --generate 4 --stop 'not one token'      -> not one
2 extract JOB --quantize 8bit --via transformers --random-init -> and random_init (--random-init) exclude each other
2 extract JOB --device-map auto --device cpu           -> each says where the work runs
2 extract --model agreement-gpt2 --dataset DATA --via transformers -> 'agreement-gpt2' is probekit's own model
2 extract --model counting-gpt --dataset DATA --via transformers -> 'counting-gpt' is probekit's own model
2 extract --model agreement-gpt2 --dataset DATA --revision step0,step5 -> 'agreement-gpt2' is built in
2 extract ON pairs.csv --group-column pear             -> did you mean 'pair'
2 extract ON ids.csv --label-column id                 -> 2,100 different labels in column 'id' ('id-0', 'id-1',
2 extract ON ids.csv --label-column id --max-classes 50 -> at most 50 classes
3 extract ON empty.csv                                 -> empty.csv is empty; expected a table of texts and labels
3 extract ON latin.csv                                 -> latin.csv, line 3
3 extract ON unlabelled.csv                            -> line 42: expected a label of 'label', got -1, which means 'not
3 extract ON rare.csv                                  -> train: 0=34, 1=0;
3 extract ON splits                                    -> test: 0=10, 1=0
2 extract ON chats.jsonl                               -> has no chat template to make texts of them; give one with
2 extract ON chats.jsonl --chat-template none.jinja    -> no chat template 'none.jinja': no such file
3 extract ON chats.jsonl --chat-template broken.jinja  -> of broken.jinja is no valid Jinja, line 1
3 extract ON chats.jsonl --chat-template '10 MB.jinja' -> example 'chats:0': the chat template of 10 MB
3 extract ON chats.jsonl --chat-template attributes.jinja -> does what the sandbox forbids
3 extract ON chats.jsonl --chat-template attributes.jinja --on-bad-row skip -> all 60 rows are left out
4 extract JOB --out folder                             -> folder
2 generate --model MODEL --tokens 257                  -> token ids lie in 0..256; got 257
2 generate --model MODEL --tokens ''                   -> the prompt is empty
2 generate --model MODEL --prompt ''                   -> the prompt is empty
2 generate --model MODEL --prompt abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz -> does not fit a context of 48
2 generate --model MODEL --prompt a --stop two         -> 'two' is 3 tokens, not one
2 train-model counting-gpt --positions learned         -> the config of counting-gpt has no field 'positions'
2 train-model ranking --positions rotary               -> positions
2 train-model counting-gpt --steps 12 --warm-up-steps 13 -> warm_up_steps is at most steps, 12; got 13
2 train-model counting --warm-up-steps 401             -> warm_up_steps is at most steps, 400; got 401
4 train-probe STORE --out folder                       -> holds 'precious.txt', which is not a file of results
4 train-probe STORE --layer 0 --out probes             -> holds 'mine.pt', which is not a file of results
2 train-probe STORE --metric r2                        -> r2 is not for labels that are classes; take accuracy
2 train-probe STORE --probe attention                  -> extract again with position all (--position all)
2 train-probe STORE --label lable                      -> did you mean label?
2 train-probe STORE --nuisance source                  -> tokens, position, frequency); extract again
2 train-probe STORE --probe k-sparse --set train-probe.probe.kk=4 -> k-sparse has no parameter 'kk'; it has k
2 train-probe STORE --probe lda,ridge --set train-probe.probe.C=4 -> several probes take no parameters
2 train-probe STORE --by position --position last      -> position 'last' is one; leave position
2 train-probe STORE --projection --point attn_out,resid_pre -> name one point
2 train-probe STORE --projection --probe mlp           -> needs a linear probe
3 train-probe STORE --layer 0 --folds 91               -> 91 folds need at least 91 rows
3 train-probe ALL --by position --least-texts 1000     -> no position has 1,000 texts of each class
2 train-probe ALL --aggregate max --probe mlp          -> takes a linear probe of tokens
2 train-probe ALL --aggregate max --position last      -> position last is one; leave position (--position) out
2 train-probe ALL --aggregate max --set train-probe.probe.standardise=false -> it has C, temperature, window, k
2 train-probe HEADS --by head --point resid_pre        -> resid_pre has no heads
2 causal PROBED                                        -> name the next word of each class
2 causal PROBED --answers g,b,c                        -> a word for each of the 2 classes
2 causal PROBED --answers g,g                          -> must differ
2 causal PROBED --answers good,bad                     -> token
2 causal PROBED --answers g,b --layer 9                -> layer 9
2 causal PROBED --pairs absent.csv --method patch -> absent.csv
2 causal PROBED --pairs absent.csv --method patch --answers g,b -> (--answers) exclude each other
2 causal PROBED --answers g,b --align last             -> align='last' (--align) needs pairs (--pairs)
2 causal PROBED --answers g,b --exact 3                -> exact=3 (--exact) needs methods with patch (--method patch)
3 causal PROBED --answers g,b --label colour           -> holds no results of probes of colour
3 causal PROBED --answers g,b --point attn_out         -> --point attn_out
2 causal PROBED --answers g,b --store STORE            -> leave out --store
2 causal PROBED --answers g,b --method patch --neutral n.txt -> neutral='n.txt' (--neutral) exclude each other
2 causal PROBED --answers g,b --method patch --at all  -> at='all' (--at) exclude each other
2 causal PROBED --answers g,b --method interchange --at all -> interchange takes the coordinate of one token
3 causal PROBED --answers g,b --layer 1 --method steer --rows 10 --scale 1e308 -> 'probe' at scale 1e+308 at resid_pre.1
3 causal empty --answers g,b                           -> no store
2 train-probe COLUMNS --nuisance sorce                 -> did you mean 'source', or extract again
2 train-probe COLUMNS --nuisance source --by position  -> nuisances are of one row of each text
2 train-probe STORE --baseline scores:absent.csv       -> no file of scores 'absent.csv'
2 train-probe STORE --baseline prompted --prompt absent.jinja -> no prompt template 'absent.jinja': no such file
2 train-probe STORE --baseline prompted --answers a,b,c -> got 3 answers; give one answer for each class
2 train-probe STORE --baseline prompted:gtp2           -> did you mean gpt2
2 train-probe STORE --baseline prompted --prompt text --shots 2 -> shows no shots, so --shots changes nothing
2 train-probe STORE --baseline prompted --prompt text --question 'Is it?' -> shows no question
3 train-probe STORE --baseline prompted --prompt broken.jinja -> the prompt template of broken.jinja is no valid Jinja
3 train-probe STORE --baseline scores:unknown.csv      -> unknown.csv: no row has the id 'nobody' (1 of 2 are unknown)
3 train-probe STORE --baseline scores:no-score.csv     -> no-score.csv has ids and no scores
3 train-probe STORE --baseline scores:text-score.csv   -> expected a finite number in 'score', got 'high'
3 train-probe STORE --baseline scores:twice-score.csv  -> the id 'texts:0' is that of twice-score.csv, line 2 too
3 train-probe STORE --baseline scores:some-scores.csv  -> some-scores.csv: no score for the row
3 train-probe STORE --baseline prompted --shots 70    -> more than the context of
2 train-probe COLUMNS --shift-column source --baseline random-init -> and baseline (--baseline)
3 train-probe COLUMNS --shift-column source --least-texts 1000 -> needs two values of 'source'
2 train-probe COLUMNS --shift-column size --controls 1 -> and controls (--controls) exclude
2 train-probe COLUMNS --shift-column source --projection -> a projection draws one layer of one curve
2 transfer STORE STORE                                 -> very same examples
2 transfer STORE STORE --point z                       -> no activations of z
3 compare STORE ALL                                    -> run probekit train-probe
2 sweep --model nope --dataset tasks                   -> no model 'nope'
2 sweep --model agreement-gpt2,nope --dataset tasks    -> no model 'nope'
2 sweep --model '' --dataset tasks                     -> a sweep needs at least one model
2 sweep --model agreement-gpt2 --dataset ''            -> a sweep needs at least one task
2 sweep --model agreement-gpt2 --dataset splits --probe logistc -> unknown probe 'logistc'
3 sweep --model agreement-gpt2 --dataset empty         -> has no tables of tasks
4 sweep --model agreement-gpt2 --dataset splits --out file -> is a file
2 export STORE --to pickle                             -> unknown kind of export 'pickle'
2 export STORE --texts --out x.txt                     -> texts are written to a file such as texts.csv
2 export STORE --texts --to csv                        -> and to='csv' (--to) exclude each other
3 export nowhere                                       -> no folder of results
3 export nowhere --texts                               -> no store at 'nowhere'
3 merge nothing other --out all                        -> nothing
"""
"""Refused by the model, the data or the activations."""

GOOD = [f"text {i},{i % 2}" for i in range(40)]
TABLES: dict[str, str | bytes] = {
    "empty.csv": "",
    "latin.csv": "text,label\na,1\nné,0\n".encode("latin-1"),
    "unlabelled.csv": "\n".join(["text,label", *GOOD, "t,-1"]),
    "two.jsonl": '{"text": "a", "label": 0}\n' * 40,
    "rare.csv": "\n".join(["text,label", *(f"text {i},{int(i > 39)}" for i in range(42))]),
    "ids.csv": "\n".join(["text,id", *(f"text {i},id-{i}" for i in range(2100))]),
    "pairs.csv": "\n".join(["text,label,pair", *(f"{row},pair {i // 2}" for i, row in enumerate(GOOD))]),
    "years.csv": "\n".join(["label", *map(str, range(1900, 1960))]),
    "y.csv": "\n".join(["label", *(str(i % 2) for i in range(60))]),
    "broken.csv": "text,label\n1\n",
    "folder/precious.txt": "mine",
    "probes/mine.pt": "mine",
    "file": "mine",
    "bad.pt": "",
    "c.yaml": "train-probe: {probe: {name: lda, k: [4]}}",
    "chats.jsonl": "\n".join(
        json.dumps({"messages": [{"role": "user", "content": f"n {i}?"}], "label": i % 2}) for i in range(60)
    ),
    "broken.jinja": "{{ 1 + }}",
    "unknown.csv": "id,score\ntexts:0,1\nnobody,2\n",
    "no-score.csv": "id\ntexts:0\n",
    "text-score.csv": "id,score\ntexts:0,high\n",
    "twice-score.csv": "id,score\ntexts:0,1\ntexts:0,2\n",
    "some-scores.csv": "id,score\ntexts:0,1\n",
    **{f"{name}.jinja": HOSTILE[name][0] for name in ("10 MB", "attributes")},
    **{
        f"splits/{split}.csv": "text,label\n" + "".join(f"{split} {i},{i % n}\n" for i in range(10))
        for split, n in {"train": 2, "dev": 2, "test": 1}.items()
    },
}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder of files that something is wrong with."""
    folder = tmp_path_factory.mktemp("bench")
    for name, content in TABLES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    (folder / "empty").mkdir()
    (folder / "acts").mkdir()
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    np.save(folder / "acts/resid_pre.0.npy", x)
    x[7, 2] = np.nan
    np.save(folder / "resid_pre.0.npy", x)
    return folder


@pytest.fixture(scope="module")
def places(request: pytest.FixtureRequest) -> dict[str, str]:
    names = {"MODEL": "gpt2_folder", "DATA": "texts", "STORE": "store", "ALL": "all_tokens", "HEADS": "heads"}
    names |= {"COLUMNS": "columns", "PROBED": "probed"}
    return {name: str(request.getfixturevalue(fixture)) for name, fixture in names.items()}


def words_of(typed: str, places: dict[str, str]) -> list[str]:
    on = ["--model", places["MODEL"], "--dataset"]
    more = {"ON": on, "JOB": [*on, places["DATA"]]}
    return [part for word in shlex.split(typed) for part in more.get(word, [places.get(word, word)])]


def rows_of(table: str) -> list[tuple[int, str, str]]:
    """What is typed, with the exit code and the words."""
    lines = [line.split(" -> ") for line in table.strip().splitlines()]
    return [(int(typed[0]), typed[2:].strip(), words) for typed, words in lines]


def contents(*folders: str | Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for folder in folders for path in Path(folder).rglob("*") if path.is_file()}


@pytest.mark.parametrize(("code", "typed", "words"), rows_of(LATE), ids=[typed for _, typed, _ in rows_of(LATE)])
def test_one_line_an_exit_code_and_nothing_written(
    bench: Path, places: dict[str, str], refused: Callable[..., str], code: int, typed: str, words: str
) -> None:
    with contextlib.chdir(bench):
        assert words in refused(code, *words_of(typed, places))
    assert contents(bench).keys() == {bench / name for name in (*TABLES, "acts/resid_pre.0.npy", "resid_pre.0.npy")}


PROGRAM = """
import json, sys
from probekit.cli.main import run
for args in json.load(sys.stdin):
    code = run(args)
    print("CODE", code, *sorted({"torch", "sklearn", "matplotlib", "scipy.stats"} & set(sys.modules)), file=sys.stderr)
"""


def test_typing_mistakes_are_refused_before_torch_is_imported(bench: Path, places: dict[str, str]) -> None:
    rows, before = rows_of(EARLY), contents(bench, *places.values())
    typed = [words_of(line, places) for _, line, _ in rows]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps(typed), cwd=bench, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    answers = done.stderr.splitlines()
    wrong = [
        (line, *answer)
        for (code, line, words), *answer in zip(rows, answers[::2], answers[1::2], strict=True)
        if not (answer[0].startswith("probekit: error: ") and words in answer[0] and answer[1] == f"CODE {code}")
    ]
    assert wrong == []
    assert done.stdout == ""
    assert contents(bench, *places.values()) == before


def test_the_names_that_need_no_torch_are_those_of_the_code() -> None:
    from probekit.evaluation.scores.metrics import HEADLINES, LOWER_IS_BETTER

    assert set(METRIC_NAMES) == set(HEADLINES)
    assert set(LOSSES) == set(LOWER_IS_BETTER)
    assert {*PROBES, *REGRESSORS, *SEQUENCE_PROBES} == set(PROBE_NAMES)
    for kinds in (PROBES, REGRESSORS):
        for name, kind in kinds.items():
            assert kind.has_C == (name not in WITHOUT_C)
            assert kind.without_penalty == (name == "ridge")


def test_a_store_that_may_not_be_written_is_refused_before_the_work(here: Path, store: Path, refused, monkeypatch):
    locked = Path(store)  # root may write everywhere, so the system's answer is replaced
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK or Path(path) != locked)
    for job in (["train-probe", store], ["transfer", store, store]):
        line = refused(4, *job)
        assert line.endswith("may not be written; name another folder for the results (--out)")
        assert str(locked) in line
    assert "may not be written" in refused(4, "train-probe", store, "--out", store)


@pytest.mark.parametrize("position", ["first,last", "all"])
def test_a_missing_position_names_those_that_there_are(
    here: Path, gpt2_folder: Path, texts: Path, refused, position, capsys
):
    job = ["extract", "--model", str(gpt2_folder), "--dataset", str(texts), "--out", "s", "--layers", "0", "--quiet"]
    assert run([*job, "--position", position]) == 0
    capsys.readouterr()
    line = refused(2, "train-probe", "s", "--quick")
    known = "first, last" if position != "all" else "last, first, mean, a token's index, last@assistant, ... or all"
    assert line.endswith(f"name it with --position (in Python, position=): {known}")


def test_no_library_is_imported_that_a_quick_look_does_not_need(here: Path, store: Path) -> None:
    heavy = {"transformers", "datasets", "sklearn", "pandas", "scipy.stats", "scipy.optimize", "pyarrow.compute"}
    code = "import sys; from probekit.cli.main import run; assert run(sys.argv[1:]) == 0; print(*sys.modules)"
    job = ["train-probe", str(store), "--quick", "--layer", "0", "--C", "1", "--out", "o", "--quiet"]
    done = subprocess.run([sys.executable, "-c", code, *job], capture_output=True, text=True, check=True)
    modules = set(done.stdout.splitlines()[-1].split())
    assert {"torch", "matplotlib"} <= modules
    assert heavy & modules == set()


@pytest.mark.parametrize(
    ("command", "original", "is_ours"),
    [
        ("/bin/probekit", ["/bin/probekit"], True),
        ("-m", ["python", "-m", "probekit"], True),  # while the package is imported
        ("/lib/probekit/__main__.py", ["python", "-m", "probekit", "ls"], True),
        ("/lib/pytest/__main__.py", ["python", "-m", "pytest", "probekit"], False),
        ("/home/run.py", ["python", "run.py", "probekit"], False),
        ("", ["python"], False),
    ],
)
def test_a_program_is_probekit_by_its_command(
    command: str, original: list[str], is_ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [command])
    monkeypatch.setattr(sys, "orig_argv", original)
    assert program.is_running() == is_ours


def test_no_garbage_is_collected_among_what_an_import_made(monkeypatch: pytest.MonkeyPatch) -> None:
    with program.loading():  # another program that imports probekit keeps its own ways
        assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    monkeypatch.setattr(program, "is_running", lambda: True)
    try:
        with program.loading():
            assert not gc.isenabled()
        assert gc.isenabled()
        assert gc.get_freeze_count() > 1000
    finally:
        gc.unfreeze()
