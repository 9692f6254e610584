"""Planted bugs: does a test notice when the arithmetic, a check or a promise of the store is quietly broken?

    python benchmarks/planted_bugs.py --out before.json
    python benchmarks/planted_bugs.py --tree TREE --only ln-eps,window-one-more

Each bug replaces a snippet, found by its content anywhere in the package, in a copy of the tree, and runs the tests
that should notice. "not applicable": no variant of the snippet is there, because the code was rewritten; give the bug
another variant then.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT = 240  # seconds of the tests of one bug
FAMILIES = "tests/models/families"
PACKAGING = "tests/models/test_packaging.py"
STORE = "tests/activations/test_store.py tests/activations/test_store_damage.py tests/activations/test_store_pieces.py"


@dataclass(frozen=True)
class Bug:
    """A mistake.

    Attributes:
        name: what is wrong.
        tests: files and folders that should notice, those that are there, separated by blanks.
        variants: (snippet, replacement); the first that occurs in the package is taken, wherever it occurs.
    """

    name: str
    tests: str
    variants: tuple[tuple[str, str], ...]


def bug(name: str, tests: str, *texts: str) -> Bug:
    """A bug of old, new, old, new ..."""
    return Bug(name, tests, tuple(zip(texts[::2], texts[1::2], strict=True)))


BUGS = [
    # models
    bug(
        "quantized-block-turned",
        "tests/models/test_quantized.py",
        "_share(small.shape[axis], shape[axis], block[axis] if block else None)",
        "_share(small.shape[axis], shape[axis], block[-3 - axis] if block else None)",
    ),
    bug("quantized-zero-dropped", "tests/models/test_quantized.py", "part -= zeros(here)", "pass"),
    bug(
        "quantized-nibbles-turned",
        "tests/models/test_quantized.py",
        "numbers[(blocks & 15).long()], numbers[(blocks >> 4).long()]",
        "numbers[(blocks >> 4).long()], numbers[(blocks & 15).long()]",
    ),
    bug(
        "ln-eps",
        "tests/models/test_layers.py",
        "scale_BL1 = self.hook_scale((centred_BLD.square().mean(-1, keepdim=True) + self.eps).sqrt())",
        "scale_BL1 = self.hook_scale((centred_BLD.square().mean(-1, keepdim=True)).sqrt() + self.eps)",
    ),
    bug(
        "ln-not-centred",
        "tests/models/test_layers.py",
        "centred_BLD = x32_BLD - x32_BLD.mean(-1, keepdim=True)",
        "centred_BLD = x32_BLD",
    ),
    bug(
        "ln-bias-dropped",
        "tests/models/test_layers.py",
        "(centred_BLD / scale_BL1 * self.weight + self.bias)",
        "(centred_BLD / scale_BL1 * self.weight)",
    ),
    bug(
        "softmax-empty-row-nan",
        "tests/models/test_layers.py",
        "return x.masked_fill(empty, 0).softmax(dim).masked_fill(empty, 0)",
        "return shares",
    ),
    bug(
        "scores-not-scaled",
        "tests/models/test_layers.py",
        "q_over_root = q_BLHK / math.sqrt(q_BLHK.shape[-1])",
        "q_over_root = q_BLHK",
    ),
    bug(
        "causal-mask-shifted",
        "tests/models/test_layers.py",
        "dtype=torch.bool, device=mask_BL.device).tril()",
        "dtype=torch.bool, device=mask_BL.device).tril(1)",
    ),
    bug(
        "positions-from-mask-one-more",
        "tests/models/test_layers.py",
        "return (attention_mask.long().cumsum(1) - 1).clamp(min=0)",
        "return attention_mask.long().cumsum(1).clamp(min=0)",
    ),
    bug(
        "heads-interleaved",
        "tests/models/test_layers.py",
        "k_BMGK.repeat_interleave(repeats, 2)",
        "k_BMGK.repeat(1, 1, repeats, 1)",
    ),
    bug(
        "window-one-more",
        f"{FAMILIES}/test_llama.py tests/models/test_matrix.py",
        "return queries_BL[:, :, None] - keys_BM[:, None, :] < window",
        "return queries_BL[:, :, None] - keys_BM[:, None, :] <= window",
    ),
    bug(
        "two-sided-window-one-more",
        f"{FAMILIES}/test_modernbert.py tests/models/test_matrix.py",
        "- places[:, None, :]).abs_() < window",
        "- places[:, None, :]).abs_() <= window",
    ),
    bug(
        "wrapped-sums-unchecked",
        "tests/models/test_wrapped.py",
        "            _prove_sums(model, seen, bound)\n",
        "            _prove_sums(model, {}, bound)\n",
    ),
    bug(
        "wrapped-rows-compared-with-themselves",
        "tests/models/test_wrapped.py",
        'check(second, alone, "of a text depends on the other texts of its batch; take out what mixes them")',
        'check(second, second, "of a text depends on the other texts of its batch; take out what mixes them")',
    ),
    bug(
        "wrapped-output-for-input",
        "tests/models/test_wrapped.py",
        "return before if is_input else after",
        "return after",
    ),
    bug(
        "wrapped-resid-mid-is-an-output",
        "tests/models/test_wrapped.py",
        'INPUTS = ("resid_pre", "resid_mid")',
        'INPUTS = ("resid_pre",)',
    ),
    bug(
        "wrapped-scores-all-masked",
        "tests/models/test_wrapped.py",
        "masked = (got.to(wanted.device) < -MASKED) & (wanted < -MASKED)",
        "masked = torch.ones_like(wanted, dtype=torch.bool)",
    ),
    bug(
        "rotary-offset",
        f"tests/models/test_positional.py {FAMILIES}/test_llama.py",
        "angles = positions.float()[:, None] * frequencies(d_head, theta, scaling)",
        "angles = (positions.float() + 0.01 * positions.float())[:, None] * frequencies(d_head, theta, scaling)",
    ),
    bug(
        "rotary-wrong-sign",
        f"tests/models/test_positional.py {FAMILIES}/test_llama.py",
        "return x * cos - y * sin, y * cos + x * sin",
        "return x * cos + y * sin, y * cos - x * sin",
    ),
    bug(
        "rope-attention-factor-dropped",
        f"tests/models/test_positional.py {FAMILIES}/test_llama.py",
        "return table if scaling is None else table * scaling.attention_factor",
        "return table",
    ),
    bug(
        "yarn-ceil",
        f"tests/models/test_positional.py {FAMILIES}/test_llama.py",
        "first, last = float(math.floor(first)), float(math.ceil(last))",
        "first, last = float(math.floor(first)), float(math.floor(last))",
    ),
    bug(
        "yarn-always-truncated",
        f"tests/models/test_positional.py {FAMILIES}/test_against_transformers.py",
        "if scaling.truncate:",
        "if True:",
    ),
    bug(
        "partial-rotary-all",
        f"{FAMILIES}/test_gptneox.py {FAMILIES}/test_llama.py tests/models/test_matrix.py",
        "n_rotated = 2 * rotation[0].shape[-1]",
        "n_rotated = rotation[0].shape[-1]",
    ),
    bug(
        "gemma-gain-without-one",
        f"{FAMILIES}/test_gemma.py {FAMILIES}/test_against_transformers.py",
        "x32 / scale * (1 + self.weight.to(x32.dtype))",
        "x32 / scale * self.weight.to(x32.dtype)",
    ),
    bug(
        "gemma-query-scale",
        f"{FAMILIES}/test_gemma.py {FAMILIES}/test_against_transformers.py",
        "self.factor = math.sqrt(cfg.d_head / cfg.query_pre_attn_scalar)",
        "self.factor = 1.0",
    ),
    bug(
        "soft-cap-of-the-mask",
        f"{FAMILIES}/test_gemma.py {FAMILIES}/test_against_transformers.py",
        "soft_cap(scores, cap).masked_fill_(unseen_BNM[:, None], -math.inf)",
        "soft_cap(scores, None).masked_fill_(unseen_BNM[:, None], -math.inf)",
    ),
    bug(
        "sink-dropped-by-the-kernel",
        f"{FAMILIES}/test_gptoss.py",
        "shares_BHL1 = torch.sigmoid(sum_BHL - sinks_H[:, None].to(sum_BHL.dtype))[..., None]",
        "shares_BHL1 = torch.ones_like(sum_BHL)[..., None]",
    ),
    bug(
        "sink-dropped-by-the-steps",
        f"{FAMILIES}/test_gptoss.py",
        "return torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]",
        "return scores.softmax(-1)",
    ),
    bug(
        "experts-not-by-turns",
        f"{FAMILIES}/test_gptoss.py {FAMILIES}/test_against_transformers.py",
        "rows = slice(i, None, len(several)) if ours in alternating else slice(start, end)",
        "rows = slice(start, end)",
    ),
    bug(
        "expert-gate-cut-below-too",
        f"{FAMILIES}/test_against_transformers.py",
        "self.gate(x_ND).clamp(max=self.limit)",
        "self.gate(x_ND).clamp(-self.limit, self.limit)",
    ),
    bug(
        "correction-in-the-weights",
        f"{FAMILIES}/test_glm.py",
        "largest = scores_BLE.gather(-1, chosen)",
        "largest = self.deciding(logits_BLE).gather(-1, chosen)",
    ),
    bug(
        "correction-narrowed",
        f"{FAMILIES}/test_glm.py",
        "if self.correction_bias.dtype.itemsize < kept.dtype.itemsize:",
        "if False:",
    ),
    bug(
        "groups-by-their-best-expert",
        f"{FAMILIES}/test_glm.py",
        "return scores_CS.topk(2, -1).values.sum(-1)",
        "return scores_CS.amax(-1)",
    ),
    bug(
        "shared-expert-not-gated",
        f"{FAMILIES}/test_moe.py",
        "self.shared_gate(x_BLD).sigmoid() * self.shared(x_BLD)",
        "self.shared(x_BLD)",
    ),
    bug(
        "common-part-of-keys-not-rotated",
        f"{FAMILIES}/test_against_transformers.py",
        "rope = self.rotated(rope, rotation).expand(*nope.shape[:3], -1)",
        "rope = rope.expand(*nope.shape[:3], -1)",
    ),
    bug(
        "latents-do-not-scale-scores",
        f"{FAMILIES}/test_against_transformers.py",
        "self.attended(q_BLHK * self.factor, k_BMHK, v_BMHW, mask)",
        "self.attended(q_BLHK, k_BMHK, v_BMHW, mask)",
    ),
    bug(
        "marian-embedding-scale",
        f"{FAMILIES}/test_transformer.py",
        "return embed_BLD * math.sqrt(self.cfg.d_model) if self.cfg.scale_embedding else embed_BLD",
        "return embed_BLD",
    ),
    bug(
        "gpt2-init-not-smaller-into-the-stream",
        f"{FAMILIES}/test_gpt2.py {FAMILIES}/test_families.py",
        "(math.sqrt(2 * self.cfg.n_layers) if writes_to_stream else 1)",
        "(math.sqrt(2 * self.cfg.n_layers) if False else 1)",
    ),
    bug(
        "gpt2-positions-dropped",
        f"{FAMILIES}/test_gpt2.py {FAMILIES}/test_against_transformers.py",
        "start, resid_BLD = self.started(embed + pos_embed)",
        "start, resid_BLD = self.started(embed)",
        "return self.hook_embed(self.embed(tokens)) + self.hook_pos_embed(self.pos_embed(position_ids))",
        "return self.hook_embed(self.embed(tokens)) + 0 * self.hook_pos_embed(self.pos_embed(position_ids))",
    ),
    bug(
        "head-bias-dropped",
        f"{FAMILIES}/test_gpt2.py {FAMILIES}/test_families.py tests/models/test_weights.py",
        "return linear(normalized_BLD, (self.unembed or self.embed).weight, self.unembed_bias)",
        "return linear(normalized_BLD, (self.unembed or self.embed).weight, None)",
    ),
    bug(
        "top-p-includes-one-fewer",
        "tests/models/test_generation.py",
        "likelier_BV >= sampling.top_p)",
        "sorted_BV.cumsum(-1) >= sampling.top_p)",
    ),
    bug(
        "draws-ignore-the-row",
        "tests/models/test_generation.py",
        "torch.Generator().manual_seed(sampling.seed + i) for i in numbers",
        "torch.Generator().manual_seed(sampling.seed) for i in numbers",
    ),
    bug(
        "stop-token-kept-in-the-text",
        "tests/models/test_generation.py",
        'ids = made.tokens[:-1] if made.ended == "stop token" else made.tokens',
        "ids = made.tokens",
    ),
    bug(
        "context-one-short",
        "tests/models/test_generation.py",
        "room = [model.cfg.n_ctx + 1 - used for used in reader.used]",
        "room = [model.cfg.n_ctx - used for used in reader.used]",
    ),
    # files
    bug(
        "fsync-missing",
        "tests/test_durable.py tests/activations/test_store_disk.py tests/faults",
        "            os.fsync(file.fileno())\n        path = target()",
        "        path = target()",
        "                os.fsync(file.fileno())\n            path = target()",
        "            path = target()",
    ),
    bug(
        "folder-not-synced",
        "tests/test_durable.py tests/activations/test_store_disk.py tests/faults",
        "        put(temporary, path)\n        _fsync_folder(folder)",
        "        put(temporary, path)",
        "            put(temporary, path)\n            _fsync_folder(folder)",
        "            put(temporary, path)",
    ),
    bug(
        "last-writer-wins",
        "tests/test_durable.py tests/activations/test_store.py",
        "_write(path.parent, [data], lambda: path, _claim)",
        "_write(path.parent, [data], lambda: path, os.replace)",
    ),
    bug(
        "temporary-left",
        "tests/test_durable.py tests/activations/test_store_disk.py",
        "            temporary.unlink(missing_ok=True)",
        "            pass",
    ),
    # the store
    bug(
        "record-hash-not-checked",
        STORE,
        'if tensors and (record.file, record.n_bytes) == (body["file"], body["n_bytes"]):',
        "if tensors:",
    ),
    bug(
        "record-of-another-plan",
        STORE,
        'if has_form(RecordFile, body) and plan_seal in (None, body["plan"]):',
        "if has_form(RecordFile, body):",
        'if matches(body, _RECORD) and plan_seal in (None, body["plan"]):',
        "if matches(body, _RECORD):",
        'if matches(body, RECORD) and plan_seal in (None, body["plan"]):',
        "if matches(body, RECORD):",
    ),
    bug(
        "rows-may-repeat",
        STORE,
        "return len(set(rows)) == len(rows) > 0 and 0 <= min(rows) <= max(rows) < _MAX_SIZE",
        "return len(rows) > 0 and 0 <= min(rows) <= max(rows) < _MAX_SIZE",
    ),
    bug(
        "rows-of-another-run",
        STORE,
        "        if not np.array_equal(record.rows, rows):\n            raise StorageError",
        "        if False:\n            raise StorageError",
    ),
    bug(
        "resume-takes-another-question",
        f"{STORE} tests/activations/test_extract.py",
        "differing = [key for key in {**stored, **ours} if stored.get(key) != ours.get(key)]",
        "differing = list[str]()",
        "return [key for key in {**stored, **ours} if stored.get(key) != ours.get(key)]",
        "return list[str]()",
    ),
    bug(
        "foreign-folder-taken",
        STORE,
        'if other or ("records" in names and any((path / "records").glob("*.json"))):',
        "if False:",
    ),
    bug(
        "examples-not-checked",
        f"{STORE} tests/activations/test_store_repair.py",
        "        check_examples(path, plan)  # with damaged examples",
        "        pass  # with damaged examples",
    ),
    bug(
        "hash-of-the-first-chunk",
        STORE,
        "            digest.update(data[start : start + CHUNK])",
        "            digest.update(data[start : start + CHUNK]) if not start else None",
    ),
    bug(
        "tensor-offset-of-the-next",
        STORE,
        "for sooner in names[: names.index(name)])",
        "for sooner in names[: names.index(name) + 1])",
    ),
    bug(
        "infinity-stored",
        "tests/activations/test_extract.py tests/activations/run tests/activations/test_store.py",
        "sound = {place: x.isfinite().all(1) for place, x in kept.items()}",
        "sound = {place: ~x.isnan().any(1) for place, x in kept.items()}",
    ),
    bug(
        "cut-not-complete",
        "tests/activations/parts",
        "if numbers == list(range(plan.shards or 0)):",
        "if numbers:",
        "if sorted(number for part in parts for number in part) == every}",
        "if parts}",
    ),
    bug(
        "unfinished-part-counts",
        "tests/activations/parts",
        "return [part for part in parts if part.done < part.shards]",
        "return [part for part in parts if part.done + 1 < part.shards]",
        "return [part for part in best if part.done < part.shards]",
        "return [part for part in best if part.done + 1 < part.shards]",
    ),
    # sums
    bug(
        "sums-around-a-shift",
        "tests/activations/sums tests/probes/test_from_statistics.py",
        "self.shifted_gram + (cross + cross.T) + self.count * torch.outer(by, by)",
        "self.shifted_gram + (cross + cross.T)",
    ),
    bug(
        "covariance-ddof",
        "tests/activations/sums tests/probes/test_from_statistics.py",
        "return self.shifted_gram / self.count - torch.outer(offset, offset)",
        "return (self.shifted_gram - self.count * torch.outer(offset, offset)) / (self.count - 1)",
    ),
    bug(
        "other-shift-ignored",
        "tests/activations/sums tests/probes/test_from_statistics.py",
        "other = other.around(self.shift)",
        "other = other",
    ),
    # tokens
    bug(
        "before-includes-the-text",
        "tests/activations/plan tests/test_selections.py",
        "found = np.arange(found[0])",
        "found = np.arange(found[0] + 1)",
    ),
    bug(
        "after-one-early",
        "tests/activations/plan tests/test_selections.py",
        "else np.arange(found[-1] + 1, n)",
        "else np.arange(found[-1], n)",
        "found = np.arange(found[-1] + 1, n)",
        "found = np.arange(found[-1], n)",
    ),
    bug(
        "token-touching-a-span",
        "tests/activations/plan tests/tasks/test_token_labels.py",
        "(offsets[:, 0] < end) & (offsets[:, 1] > start) &",
        "(offsets[:, 0] <= end) & (offsets[:, 1] >= start) &",
    ),
    # tasks
    bug(
        "groups-span-splits",
        "tests/tasks/test_task_files.py tests/tasks/test_task_splits.py",
        "    together = components(texts, groups)\n",
        "    together = np.arange(len(texts))\n",
    ),
    bug(
        "split-ignores-the-seed",
        "tests/tasks/test_task_splits.py",
        "order = np.random.default_rng(seed).permutation(len(first))",
        "order = np.random.default_rng(0).permutation(len(first))",
    ),
    bug(
        "float-strata-left-side",
        "tests/tasks/test_regression.py tests/tasks/test_task_splits.py",
        'np.searchsorted(edges, labels, side="right"), -1)',
        'np.searchsorted(edges, labels, side="left"), 0)',
    ),
    bug(
        "test-carved-before-validation",
        "tests/tasks/test_task_splits.py",
        "for k, split in enumerate(reversed(missing)):",
        "for k, split in enumerate(missing):",
    ),
    bug(
        "a-class-may-get-no-row",
        "tests/tasks/test_task_splits.py",
        "given = np.maximum(np.floor(quotas), 1) if n >= len(values) else np.floor(quotas)",
        "given = np.floor(quotas)",
    ),
    bug(
        "groups-linked-by-one-column",
        "tests/tasks/test_task_splits.py tests/tasks/quality",
        "parent[max(one, other)] = min(one, other)",
        "parent[row] = min(one, other)",
    ),
    bug("near-duplicates-at-0.9", "tests/tasks/quality", "THRESHOLD = 0.7  # Jaccard", "THRESHOLD = 0.9  # Jaccard"),
    bug(
        "spanning-earlier-splits",
        "tests/tasks/quality",
        "groups[np.isin(splits, SPLITS[i + 1 :])]",
        "groups[np.isin(splits, SPLITS[i + 2 :])]",
    ),
    bug(
        "exact-duplicates-are-near",
        "tests/tasks/quality",
        "np.isin(tested, one[np.isin(other, taught)]) & ~exact",
        "np.isin(tested, one[np.isin(other, taught)])",
    ),
    bug(
        "lines-counted-by-rows",
        "tests/tasks/test_refused.py tests/tasks/test_bad_rows.py",
        "begins = reader.line_num + 1",
        "begins += 1",
    ),
    bug(
        "a-text-loses-its-first-blanks",
        "tests/tasks/test_task_files.py",
        "kept = text.rstrip() if isinstance(text, str)",
        "kept = text.strip() if isinstance(text, str)",
    ),
    bug(
        "not-labelled-is-a-class",
        "tests/tasks/test_refused.py tests/tasks/test_bad_rows.py tests/tasks/test_join_labels.py",
        "return type(value) is int and value == -1",
        "return False",
    ),
    bug(
        "a-known-label-hides-a-nul-byte",
        "tests/tasks/test_refused.py tests/tasks/test_bad_rows.py tests/tasks/test_objects.py",
        "return flaw or (flaw_of([text]) if table.typed else None)",
        "return flaw",
    ),
    bug(
        "classes-in-the-order-of-their-texts",
        "tests/tasks/test_task_files.py tests/tasks/test_task_base.py tests/tasks/test_task_made.py",
        "order = sorted(set(classes))",
        "order = sorted(set(classes), key=str)",
    ),
    bug(
        "the-secret-test-split-is-kept",
        "tests/tasks/test_task_hub.py tests/tasks/test_objects.py",
        'return {"train": tables["train"], "test": tables["validation"]}',
        "return tables",
    ),
    bug(
        "an-id-with-two-labels-keeps-the-last",
        "tests/tasks/test_join_labels.py",
        "for row in joined.twice & joined.cells.keys():",
        "for row in set[int]():",
    ),
    bug(
        "words-of-a-token-share-it",
        "tests/tasks/test_conllu.py",
        'if "".join(words) != form:',
        "if len(words) > 1:",
    ),
    bug(
        "head-distance-from-the-word-before",
        "tests/tasks/test_conllu.py",
        "return abs(head - i - 1) if head else None",
        "return abs(head - i) if head else None",
    ),
    bug(
        "no-generation-prompt",
        "tests/tasks/chats",
        '"add_generation_prompt": add_generation_prompt}',
        '"add_generation_prompt": False}',
    ),
    bug(
        "a-region-has-the-blanks-that-were-cut",
        "tests/tasks/chats",
        "found.append((at, at + len(written), i))",
        "found.append((at, at + len(content), i))",
    ),
    bug(
        "a-common-system-prompt-is-compared",
        "tests/tasks/chats",
        "common = reduce(set.intersection, map(set, chats)) if len(chats) > 1 else set()",
        "common = set()",
    ),
    bug(
        "a-tie-of-stretches-goes-to-the-last",
        "tests/activations/plan/test_token_labels_of_texts.py",
        "best = own[votes == votes.max()].min()",
        "best = own[votes == votes.max()].max()",
    ),
    bug(
        "the-rest-of-a-text-has-no-label",
        "tests/activations/plan/test_token_labels_of_texts.py tests/tasks/test_token_columns.py",
        "[*(one[2] for one in stretches), *(rest or [None])]",
        "[*(one[2] for one in stretches), None]",
    ),
    bug(
        "texts-stratified-by-their-commonest-class",
        "tests/tasks/test_token_columns.py",
        "np.lexsort((classes, texts_with[classes], text))",
        "np.lexsort((classes, -texts_with[classes], text))",
    ),
    bug(
        "a-repeated-cell-is-the-first-one",
        "tests/tasks/test_fields.py",
        "cells[row] = cells[row - 1]",
        "cells[row] = cells[0]",
    ),
    bug(
        "fingerprint-of-rounded-numbers",
        "tests/tasks/test_fields.py tests/tasks/test_regression.py",
        'kind = "<f8" if values.dtype.kind == "f" else "<i8"',
        'kind = "<f4" if values.dtype.kind == "f" else "<i8"',
    ),
    bug(
        "contradictions-between-positions",
        "tests/tasks/quality",
        "        number = _of_pairs(number, task.position)",
        "        number = np.array(number)",
    ),
    bug(
        "leaks-hidden-by-a-template",
        "tests/tasks/quality",
        "        leaks[rest[more]] = True",
        "        break",
    ),
    # probes and scores
    bug(
        "lda-prior-dropped",
        "tests/probes/test_lda.py tests/probes/test_from_statistics.py",
        "intercept = np.log(counts / counts.sum()) - (means * coef).sum(axis=1) / 2",
        "intercept = -(means * coef).sum(axis=1) / 2",
    ),
    bug(
        "lda-shrinks-to-one",
        "tests/probes/test_lda.py tests/probes/test_from_statistics.py",
        "shrinkage * np.trace(covariance) / D * np.eye(D)",
        "shrinkage * np.eye(D)",
    ),
    bug(
        "ridge-variance-ddof",
        "tests/probes/test_ridge.py",
        "torch.linalg.vector_norm(Z, dim=0) ** 2 / len(Z)",
        "torch.linalg.vector_norm(Z, dim=0) ** 2 / (len(Z) - 1)",
    ),
    bug(
        "ridge-wide-targets-uncentred",
        "tests/probes/test_ridge.py",
        "return RidgePath(values, Z.T @ U, U.T @ (targets - targets.mean(dim=0)), middle, mean, scale, (Z, targets))",
        "return RidgePath(values, Z.T @ U, U.T @ targets * 1.01, middle, mean, scale, (Z, targets))",
        "self.loadings = U.T @ (targets - targets.mean(dim=0))",
        "self.loadings = U.T @ targets * 1.01",
    ),
    bug(
        "signs-of-the-first-class",
        "tests/probes/test_ridge.py",
        "own = np.arange(n_classes) if n_classes > 2 else np.array([1])",
        "own = np.arange(n_classes) if n_classes > 2 else np.array([0])",
    ),
    bug(
        "ties-to-the-later",
        "tests/evaluation/test_ties.py tests/evaluation/test_train_probes.py",
        "return max(range(len(keys)), key=keys.__getitem__)",
        "return max(reversed(range(len(keys))), key=lambda i: keys[i][:2])",
    ),
    bug(
        "certificate-of-the-best",
        "tests/evaluation/test_train_probes.py tests/evaluation/test_protocol.py",
        "max(known) if known and len(known) == len(fits) else None",
        "min(known) if known and len(known) == len(fits) else None",
    ),
    bug(
        "bootstrap-ignores-the-seed",
        "tests/evaluation/scores/test_bootstrap.py",
        "rng, n_units = np.random.default_rng(self.seed), self._n_units",
        "rng, n_units = np.random.default_rng(0), self._n_units",
    ),
    bug(
        "bootstrap-rows-not-groups",
        "tests/evaluation/scores/test_bootstrap.py",
        "self._unit, self._n_units = _units(n, groups)",
        "self._unit, self._n_units = _units(n, None)",
    ),
    bug(
        "permutation-without-the-one",
        "tests/evaluation/scores",
        "p_values=(1 + as_good.sum(axis=1)) / (1 + permutations)",
        "p_values=as_good.sum(axis=1) / permutations",
    ),
    bug(
        "best-of-layers-not-paid-for",
        "tests/evaluation/scores",
        "best = null.max(axis=0)",
        "best = null[0]",
    ),
    bug(
        "band-at-the-pointwise-level",
        "tests/evaluation/scores/test_band.py",
        "pointwise = max(level, float(2 * ndtr(quantile) - 1))",
        "pointwise = level",
    ),
    bug(
        "gap-of-a-tenth",
        "tests/probes/logistic/test_solver.py",
        "return 0.5 * self.g[..., :-1].square().sum(dim=(1, 2))",
        "return 0.05 * self.g[..., :-1].square().sum(dim=(1, 2))",
    ),
    bug(
        "multinomial-residual-of-the-own-class",
        "tests/probes/logistic/test_multinomial.py",
        "first.scatter_(2, _index(z, y), -first.sum(dim=2, keepdim=True))",
        "first.scatter_(2, _index(z, y), -0.99 * first.sum(dim=2, keepdim=True))",
    ),
    bug(
        "weights-of-rows-are-roots",
        "tests/probes/logistic/test_solver.py",
        "return x if weights is None else x * weights\n",
        "return x if weights is None else x * weights.sqrt()\n",
    ),
    bug(
        "attention-slope-not-centred",
        "tests/probes/sequence/test_attention_probe.py",
        "scores -= np.repeat(pooled, part.lengths, axis=0)",
        "scores -= 0 * np.repeat(pooled, part.lengths, axis=0)",
    ),
    bug(
        "tokens-count-instead-of-texts",
        "tests/probes/sequence/test_aggregate_probe.py",
        "return np.repeat(weights[part.texts] / part.lengths, part.lengths)",
        "return np.repeat(weights[part.texts], part.lengths)",
    ),
    bug(
        "softmax-of-the-other-side",
        "tests/probes/sequence/test_aggregate_probe.py",
        "sharpness = side / (self.temperature * self.spread_)",
        "sharpness = 1 / (self.temperature * self.spread_)",
    ),
    bug(
        "calibration-forgets-its-prior-rows",
        "tests/probes/test_calibration.py",
        "self._weight = 1 + PRIOR_ROWS / N",
        "self._weight = 1.0",
    ),
    bug(
        "stream-in-the-order-of-the-labels",
        "tests/probes/test_stream.py",
        "yield np.arange(start, stop) if X.order is None else X.order[start:stop], block",
        "yield np.arange(start, stop), block",
    ),
    bug(
        "worst-neurons-first",
        "tests/probes/test_sparse.py",
        'order = np.argsort(-differences, kind="stable")',
        'order = np.argsort(differences, kind="stable")',
    ),
    # options, engines, sharing
    bug(
        "layers-without-the-last",
        "tests/test_points.py tests/options",
        "layers += range(int(first), int(last or first) + 1)",
        "layers += range(int(first), max(int(last or first), int(first) + 1))",
    ),
    bug(
        "one-part-too-many",
        "tests/options tests/cli/test_parts.py",
        "if 1 <= i <= n <= MAX_PARTS:",
        "if 1 <= i <= n + 1 <= MAX_PARTS:",
    ),
    bug(
        "two-folds-are-enough",
        "tests/options",
        "if not is_whole(folds) or folds < LEAST_FOLDS:",
        "if not is_whole(folds) or folds < LEAST_FOLDS - 1:",
    ),
    bug(
        "megabytes-of-1024",
        "tests/options tests/cli/test_params.py",
        "unit = (1024 if found[3] else 1000) **",
        "unit = (1000 if found[3] else 1024) **",
        "return (1024 if binary else 1000) **",
        "return (1000 if binary else 1024) **",
    ),
    bug(
        "two-workers-take-one-piece",
        "tests/engines/test_schedule.py tests/engines/test_shares.py",
        "again = [number for number in numbers if number in self.left and number not in waiting]",
        "again = [number for number in numbers if number in self.left]",
    ),
    bug(
        "a-shard-counts-twice",
        "tests/engines/test_schedule.py",
        "if self._shares.finish([one.number]):",
        "if self._shares.finish([one.number]) is not None:",
    ),
    bug(
        "lost-shards-stay-lost",
        "tests/engines/test_schedule.py tests/engines/test_shares.py",
        "self._queue.extendleft(reversed(again))",
        "self._queue.extendleft(reversed(again[1:]))",
    ),
    bug(
        "equal-size-is-equal-content",
        "tests/sharing/test_push.py",
        "if file.named_by_content:\n        return True",
        "if file.size:\n        return True",
    ),
    bug(
        "manifest-before-the-shards",
        "tests/sharing/test_push.py",
        "bulk = [file for file in sorted(files, key=order) if not file.is_last]\n",
        "bulk = sorted(files, key=lambda file: not file.is_last)\n",
        "bulk = [file for file in sorted(files, key=_order) if not file.is_last]\n",
        "bulk = sorted(files, key=lambda file: not file.is_last)\n",
    ),
    bug(
        "earlier-results-stay",
        "tests/sharing/test_push.py",
        "last: list[Any] = [CommitOperationDelete(_remote_name(plan, name)) for name in stale]",
        "last: list[Any] = [CommitOperationDelete(_remote_name(plan, name)) for name in stale[1:]]",
        "removed = [CommitOperationDelete(_remote_name(where, name)) for name in stale]",
        "removed = [CommitOperationDelete(_remote_name(where, name)) for name in stale[1:]]",
    ),
    # the command line, and what it makes
    bug(
        "typed-value-not-parsed",
        "tests/cli/test_derive.py",
        "return parse(value) if parse is not None and isinstance(value, str) else value",
        "return value",
        "return one.help.parse(value) if one.help.parse is not None and isinstance(value, str) else value",
        "return value",
    ),
    bug(
        "set-of-another-command",
        "tests/cli/test_refused.py tests/cli/test_config.py",
        'if section != ctx.info_name:\n            raise UsageError(f"--set',
        'if False:\n            raise UsageError(f"--set',
    ),
    bug(
        "skipped-rows-not-passed-on",
        "tests/cli/test_continuations.py",
        "options = replace(options, on_bad_row=task.on_bad_row, stop_tokens=",
        "options = replace(options, stop_tokens=",
    ),
    bug(
        "exit-codes-swapped",
        "tests/cli/test_refused.py tests/cli/test_refused_early.py tests/cli/test_bad_input.py",
        'labels, activations."""\n\n    exit_code = 3',
        'labels, activations."""\n\n    exit_code = 4',
    ),
    bug(
        "out-not-checked-first",
        "tests/cli/test_refused.py tests/cli/test_data_options.py",
        "    check_store_out(options.out)\n    check_via(options.out, model.via)\n",
        "    check_via(options.out, model.via)\n",
    ),
    bug(
        "json-on-stderr",
        "tests/cli/test_console.py tests/cli/test_import.py",
        "print(json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False))",
        "print(json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False), file=sys.stderr)",
    ),
    bug("quiet-ignored", "tests/cli/test_train_model.py", "return False if quiet else None", "return None"),
    bug(
        "verify-skips-the-last-shard",
        "tests/activations/test_store_repair.py tests/cli/test_verify.py",
        'if error:\n                check.add(f"shards/{record.file}", error)',
        'if error and number + 1 < len(records):\n                check.add(f"shards/{record.file}", error)',
        '        if error:\n            check.add(f"shards/{record.file}", error)',
        '        if error and number + 1 < len(records):\n            check.add(f"shards/{record.file}", error)',
    ),
    bug(
        "repair-takes-other-bits",
        "tests/activations/test_store_repair.py",
        "        if not is_same:\n            versions",
        "        if False:\n            versions",
        "        if not _agrees(record, sealed, expected):",
        "        if False:",
    ),
    bug(
        "repair-of-the-sound-shards",
        "tests/activations/test_store_repair.py tests/cli/test_verify.py",
        "return number not in self._expected",
        "return number in self._expected",
    ),
    bug(
        "last-batch-dropped",
        "tests/activations/test_extract.py tests/activations/run/test_forward.py",
        "    for blocks in plan.shards[number]:\n",
        "    for blocks in plan.shards[number][: max(1, len(plan.shards[number]) - 1)]:\n",
    ),
    bug(
        "mean-as-sum",
        "tests/activations/test_extract.py tests/activations/run/test_forward.py",
        'torch.segment_reduce(wide, "mean"',
        'torch.segment_reduce(wide, "sum"',
    ),
    bug(
        "oldest-store-taken",
        "tests/activations/test_listing.py tests/cli/test_train.py",
        "for _, path in sorted(dated_manifests(root), reverse=True):",
        "for _, path in sorted(dated_manifests(root)):",
    ),
    # evaluation and its table
    bug(
        "paired-not-in-each-resample",
        "tests/evaluation/results tests/evaluation/test_scepticism.py",
        "difference = (first - second)[np.isfinite(first - second)]",
        "difference = (first - np.sort(second))[np.isfinite(first - second)]",
    ),
    bug(
        "lead-over-the-worst",
        "tests/evaluation/results tests/evaluation/test_scepticism.py",
        "_, name, predictions = max(values, key=lambda each: each[0])",
        "_, name, predictions = min(values, key=lambda each: each[0])",
    ),
    bug(
        "optimism-of-validation",
        "tests/evaluation/results tests/evaluation/test_scepticism.py",
        'top = max(results, key=lambda layer: (layer.metrics["test"][metric], layer is best))',
        'top = max(results, key=lambda layer: (layer.metrics["train"][metric], layer is best))',
    ),
    bug(
        "band-of-normal-errors",
        "tests/evaluation/scores/test_joint.py tests/evaluation/scores/test_band.py",
        "drawn = np.random.default_rng(0).chisquare(n_units - 1, size=studentised.shape) / (n_units - 1)",
        "drawn = np.ones(studentised.shape)",
    ),
    bug(
        "best-set-without-the-error-of-the-error",
        "tests/evaluation/scores/test_best_set.py",
        "errors = np.sqrt(errors**2 * n_units / (n_units - 1) + unequal**2 / n_units)",
        "errors = np.sqrt(errors**2 + unequal**2 / n_units)",
    ),
    bug(
        "permutation-without-itself",
        "tests/evaluation/scores/test_permutation.py",
        "p_values=(1 + as_good.sum(axis=1)) / (1 + permutations),",
        "p_values=as_good.sum(axis=1) / permutations,",
    ),
    bug(
        "p-max-of-the-mean",
        "tests/evaluation/scores/test_permutation.py",
        "best = null.max(axis=0)\n    as_good",
        "best = null.mean(axis=0)\n    as_good",
    ),
    bug(
        "ties-apart",
        "tests/evaluation/scores/test_metrics.py",
        "is_lower = (ranked[:, 1:] != ranked[:, :-1]) & ~(ranked[:, :-1] - ranked[:, 1:] <= ROUNDING * scale)",
        "is_lower = ranked[:, 1:] != ranked[:, :-1]",
    ),
    bug(
        "grid-corrected-in-each-position",
        "tests/evaluation/by_position",
        "largest = np.maximum(largest, _standardised(null, null).max(axis=0))",
        "largest = _standardised(null, null).max(axis=0)",
    ),
    bug(
        "folds-choose-on-their-test",
        "tests/evaluation/test_protocol.py tests/evaluation/test_folds.py",
        "[(pairs[frozenset((i, j))], j) for j in range(folds) if j != i]",
        "[(pairs[frozenset((i, j))], i) for j in range(folds) if j != i]",
    ),
    bug(
        "selection-takes-the-larger-C",
        "tests/evaluation/test_ties.py tests/evaluation/test_train_probes.py",
        "return converged, round(headline, DIGITS), rows, least_loss, 0.0 if C is None else -C",
        "return converged, round(headline, DIGITS), rows, least_loss, 0.0 if C is None else C",
    ),
    bug(
        "selection-without-loss",
        "tests/evaluation/test_ties.py tests/evaluation/test_train_probes.py",
        "least_loss = -math.inf if loss is None or math.isnan(loss) else -loss",
        "least_loss = 0.0",
    ),
    bug(
        "code-of-the-labels-it-has-seen",
        "tests/evaluation/test_codelength.py",
        "probes = probe.fit_many(take_rows(X, np.arange(start)), code.problems(start))",
        "probes = probe.fit_many(take_rows(X, np.arange(end)), code.problems(end))",
    ),
    bug(
        "within-of-all-rows",
        "tests/evaluation/surface/test_within.py",
        "kept = ~missing if group is None else group.rows",
        "kept = ~missing",
    ),
    bug(
        "within-shares-baselines",
        "tests/evaluation/surface/test_within.py",
        'return self.label, "" if self.group is None else self.group.value',
        'return self.label, ""',
    ),
    bug(
        "frequency-of-all-rows",
        "tests/evaluation/surface/test_within.py",
        "counts = Counter(types[row] for row in train)",
        "counts = Counter(types)",
    ),
    bug(
        "within-keeps-values-without-a-class",
        "tests/evaluation/surface/test_within.py",
        "return bool((np.bincount(labels, minlength=n_classes) >= least).all())",
        "return len(labels) >= least",
    ),
    bug(
        "table-interval-of-another-split",
        "tests/evaluation/results tests/faults/test_damaged_results.py",
        'yield row | (ends_of(result.intervals.get(metric)) if split == "test" else {})',
        "yield row | ends_of(result.intervals.get(metric))",
    ),
    bug(
        "table-marks-the-best-on-test",
        "tests/evaluation/results",
        "is_quoted = data.quoted is not None and layer is data.quoted.layer",
        'is_quoted = layer is max(data.layers, key=lambda one: one.metrics["test"][data.headline])',
    ),
    bug(
        "table-p-of-another-place",
        "tests/evaluation/by_position",
        'tested = {"chance": one.chance, "p_value": layer.p_value, "p_corrected": one.corrected[i]}',
        'tested = {"chance": one.chance, "p_value": layer.p_value, "p_corrected": one.corrected[0]}',
    ),
    bug(
        "quote-of-a-fold",
        "tests/evaluation/test_folds.py tests/evaluation/results",
        "best = None if self.procedure is not None else self.selected",
        "best = self.selected",
    ),
    bug(
        "chance-of-auroc",
        "tests/evaluation/test_verdict.py tests/evaluation/by_position",
        '_CHANCE = {"auroc": 0.5, "r2": 0.0, "spearman": 0.0}',
        '_CHANCE = {"r2": 0.0, "spearman": 0.0}',
    ),
    bug(
        "poor-verdict-only-below-chance",
        "tests/evaluation/test_verdict.py",
        "if score is not None and chance is not None and score[0] <= chance:",
        "if score is not None and chance is not None and score[1] <= chance:",
    ),
    bug(
        "depth-of-the-output",
        "tests/test_points.py tests/side_by_side tests/sweeps",
        'done = {"resid_pre": 0.0, "resid_post": 1.0}.get(base, 0.0 if "embed" in base else 0.5)',
        'done = {"resid_pre": 0.0, "resid_post": 0.0}.get(base, 0.0 if "embed" in base else 0.5)',
    ),
    bug(
        "holm-without-running-maximum",
        "tests/side_by_side",
        "largest = max(largest, min(1.0, (len(known) - rank) * p))",
        "largest = min(1.0, (len(known) - rank) * p)",
    ),
    bug(
        "part-of-another-run",
        "tests/evaluation/results/test_row_scores.py tests/scoring/test_spread.py",
        '    if hashlib.sha256(data).hexdigest() != sha256:\n        raise DataError(f"{str(path)!a} is not the one',
        '    if False:\n        raise DataError(f"{str(path)!a} is not the one',
    ),
    # causal
    bug(
        "effect-chosen-on-test",
        "tests/causal/curve tests/causal/test_truths.py",
        'if (e.method, e.split) == (method, "validation") and e.direction in directions]',
        'if (e.method, e.split) == (method, "test") and e.direction in directions]',
    ),
    bug(
        "effect-of-the-smallest",
        "tests/causal/curve tests/causal/test_truths.py",
        "chosen[method] = max(own, key=lambda effect: effect.effect)",
        "chosen[method] = min(own, key=lambda effect: effect.effect)",
    ),
    bug(
        "placebos-counted-without-sign",
        "tests/causal/curve",
        "return float(1 + (np.abs(placebos) >= abs(effect)).sum()) / (1 + len(placebos))",
        "return float(1 + (np.asarray(placebos) >= effect).sum()) / (1 + len(placebos))",
    ),
    bug(
        "max-t-without-a-unit",
        "tests/causal/curve",
        "every = every / np.where(unit > 0, unit, 1)",
        "every = every * 1.0",
    ),
    bug(
        "ratio-interval-of-percentiles",
        "tests/causal/curve",
        "quantile = stdtrit(units - 1, (1 + LEVEL) / 2) * np.sqrt(units / (units - 1))",
        "quantile = 1.959964",
    ),
    bug(
        "control-takes-the-counterpart",
        "tests/causal/curve",
        "interchange_edit(rows.x_ND[torch.from_numpy(rows.same)])",
        "interchange_edit(other_ND)",
    ),
    bug(
        "full-vector-without-its-control",
        "tests/causal/curve/test_verdicts.py",
        "more = ratio_interval(same_N - swapped_N, whole_N, rows.bootstrap)",
        "more = ratio_interval(rows.difference - swapped_N, whole_N, rows.bootstrap)",
    ),
    bug(
        "control-with-another-answer",
        "tests/causal/curve/test_verdicts.py",
        "np.unique(np.stack([labels, answers]), axis=1, return_inverse=True)",
        "np.unique(np.stack([labels, labels]), axis=1, return_inverse=True)",
    ),
    bug(
        "read-by-its-own-interval",
        "tests/causal/curve/test_effects.py",
        "layer.band or layer.intervals.get(headline)",
        "layer.intervals.get(headline) or layer.band",
    ),
    bug(
        "full-vector-counts-at-the-output",
        "tests/causal/curve tests/worlds tests/battery",
        " and Place(layer.point, layer.layer) != output\n        if may_count",
        "\n        if may_count",
    ),
    bug(
        "program-without-query-weights",
        "tests/worlds/test_compiled.py",
        "W_Q[:, at[each.key]] += each.weight * row[each.query]",
        "W_Q[:, at[each.key]] += row[each.query]",
    ),
    bug(
        "toy-scores-divided-twice",
        "tests/models/families/test_hooked_transformer.py",
        "self.factor = 1.0 if cfg.attn_scale is None else math.sqrt(cfg.d_head) / cfg.attn_scale",
        "self.factor = 1.0 if cfg.attn_scale is None else 1 / cfg.attn_scale",
    ),
    bug(
        "angle-with-sign",
        "tests/causal/directions",
        "second = second if float(first @ second) >= 0 else -second\n    # not acos",
        "# not acos",
    ),
    # scores, pictures, files of others
    bug(
        "calibration-on-its-own-rows",
        "tests/scoring",
        "own = _fitted(columns[others], labels[others], log_odds, kind)",
        "own = _fitted(columns, labels, log_odds, kind)",
    ),
    bug(
        "calibration-counts-rows-not-groups",
        "tests/scoring",
        "gain = float((losses[best] - losses[kind]).mean()) * (groups.max() + 1)",
        "gain = float((losses[best] - losses[kind]).mean()) * len(labels)",
    ),
    bug(
        "packaged-prefix-dropped",
        PACKAGING,
        r'r"^(model\.)?(language|text)_model\.(model\.)?": "model.",',
        r'r"^(language|text)_model\.(model\.)?": "model.",',
    ),
    bug(
        "packaged-outer-fields-ignored",
        PACKAGING,
        "**{name: hf[name] for name in _FROM_OUTSIDE if name in hf}}",
        "**{name: hf[name] for name in _FROM_OUTSIDE if name in hf and name not in text}}",
    ),
    bug(
        "packaged-contradiction-unchecked",
        PACKAGING,
        "if _SIZES.search(name) and name in hf and hf[name] != text[name]]",
        "if _SIZES.search(name) and name in hf and hf[name] is None]",
    ),
    bug(
        "packaged-experts-not-normalised",
        PACKAGING,
        '"qwen3_vl_moe": {"norm_topk_prob": True},',
        '"qwen3_vl_moe": {},',
    ),
    bug(
        "packaged-soft-cap-of-the-text-class",
        PACKAGING,
        '"gemma3": {"final_logit_softcapping": None},',
        '"gemma3": {},',
    ),
    bug(
        "further-head-of-the-last-layer",
        f"{FAMILIES}/test_glm.py {PACKAGING}",
        'int(found["layer"]) >= n_layers)',
        'int(found["layer"]) >= n_layers - 1)',
    ),
    bug(
        "further-head-not-named",
        f"{FAMILIES}/test_glm.py {PACKAGING}",
        'return ", ".join(part for part in (outside, further) if part) or None',
        "return outside",
    ),
    bug(
        "threshold-of-test-rows",
        "tests/scoring",
        "found = threshold_for(scores[chosen], rows.labels[chosen], fpr)",
        "found = threshold_for(scores[tested], rows.labels[tested], fpr)",
    ),
    bug(
        "distance-without-the-rest",
        "tests/scoring",
        '        squares += np.einsum("nd,nd->n", left, left) / spread.rest\n',
        "        squares += 0.0\n",
    ),
    bug(
        "line-through-values-beyond-the-axis",
        "tests/plots tests/report",
        "for i in (i for i, value in enumerate(values) if low <= value <= high):",
        "for i in range(len(values)):",
    ),
    bug(
        "formulas-in-tables",
        "tests/export tests/cli/test_surface.py",
        'return text if text.removeprefix("-").isdecimal() else spreadsheet_cell(text)',
        "return text",
    ),
    bug(
        "make-it-again-without-folds",
        "tests/cli/test_make_it_again.py",
        "return {name: values[name] for name in shown if not _same(values[name], usual[name])}",
        'return {name: values[name] for name in shown if name != "folds" and not _same(values[name], usual[name])}',
    ),
    bug(
        "curves-with-one-key",
        "tests/evaluation/test_several_probes.py tests/evaluation/surface/test_within.py",
        'return names if len(keys) == len(several) else (*names, "probe")',
        "return names",
    ),
]


def check(bugs: list[Bug]) -> None:
    """Raise an error for two bugs of one name, or a bug that changes nothing."""
    twice = [name for name, n in Counter(one.name for one in bugs).items() if n > 1]
    same = [one.name for one in bugs if any(old == new for old, new in one.variants)]
    if twice or same:
        raise ValueError(f"names that occur twice: {twice}; bugs that change nothing: {same}")


def plant(one: Bug, package: Path) -> dict[Path, str]:
    """Make the mistake wherever the first variant that is there occurs; the files and their content before."""
    sources = {file: file.read_text() for file in sorted(package.rglob("*.py"))}
    for old, new in one.variants:
        if found := {file: text for file, text in sources.items() if old in text}:
            for file, text in found.items():
                file.write_text(text.replace(old, new))
            return found
    return {}


def take_out(planted: dict[Path, str]) -> None:
    """Give the files their content again."""
    for file, text in planted.items():
        file.write_text(text)


def outcome(one: Bug, tree: Path, limit: float) -> dict[str, Any]:
    """Plant a bug in a scratch tree, run its tests, and take it out."""
    planted = plant(one, tree / "probekit")
    if not planted:
        return {"result": "not applicable"}
    tests = [name for name in one.tests.split() if (tree / name).exists()]
    begun = time.monotonic()
    typed = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(typed, cwd=tree, env=environment, capture_output=True, text=True, timeout=limit)
        result = {0: "survived", 1: "caught", 2: "caught"}.get(done.returncode, f"pytest ended with {done.returncode}")
        said = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))][:1]
    except subprocess.TimeoutExpired:
        result, said = "timed out", []
    finally:
        take_out(planted)
    where = [str(file.relative_to(tree)) for file in planted]
    return {"result": result, "files": where, "by": said, "seconds": round(time.monotonic() - begun, 1), "tests": tests}


def main() -> None:
    """Plant the bugs one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tree", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--only", default="", help="names with commas between them")
    parser.add_argument("--out", type=Path, help="JSON of the results, written after each bug")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for the tests of one bug")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no bug after so many minutes")
    parser.add_argument("--list", action="store_true", help="only say which bugs can be planted")
    asked = parser.parse_args()
    check(BUGS)
    os.nice(10)
    chosen = [one for one in BUGS if not asked.only or one.name in asked.only.split(",")]
    found: dict[str, Any] = {}
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="planted-") as scratch:
        tree = Path(scratch) / "tree"
        left_out = shutil.ignore_patterns(".git", ".venv", "__pycache__", "runs", ".*_cache")
        shutil.copytree(asked.tree, tree, ignore=left_out, symlinks=True)
        for one in chosen:
            if asked.list:
                planted = plant(one, tree / "probekit")
                print(f"{one.name}: {[str(file.relative_to(tree)) for file in planted] or 'not applicable'}")
                take_out(planted)
                continue
            if time.monotonic() - begun > 60 * asked.minutes:
                found[one.name] = {"result": "not run"}
                continue
            found[one.name] = outcome(one, tree, asked.limit)
            print(f"{found[one.name]['result']}: {one.name} {found[one.name].get('by', '')}", flush=True)
            if asked.out:
                counts = Counter(each["result"] for each in found.values())
                asked.out.write_text(json.dumps({"counts": counts, "bugs": found}, indent=1))
    print(dict(Counter(each["result"] for each in found.values())))


if __name__ == "__main__":
    main()
