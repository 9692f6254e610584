"""The cache of keys and values against concatenation."""

from typing import Any

import pytest
import torch

from probekit.models.cache import KeyValueCache, LayerCache


@pytest.mark.parametrize("chunks", [[1] * 9, [4, 1, 1, 1, 2], [1, 7, 1], [9]])
def test_what_is_read_is_all_that_was_appended(chunks):
    cache, keys, values = LayerCache(), *torch.randn(2, 3, 9, 2, 4)
    read = []
    for end, n in zip(torch.tensor(chunks).cumsum(0).tolist(), chunks, strict=True):
        read.append((end, *cache.append(keys[:, end - n : end], values[:, end - n : end])))
        assert cache.length == end
    for end, k, v in read:  # also what was read before the cache grew
        assert torch.equal(k, keys[:, :end])
        assert torch.equal(v, values[:, :end])


def test_memory_is_copied_about_once():
    """A text of n tokens in the memory of less than 2n, which moves log2(n) times."""
    cache = LayerCache()
    keys = [cache.append(*torch.ones(2, 1, 1, 1, 1))[0] for _ in range(1000)]
    assert keys[-1].untyped_storage().nbytes() < 2 * 1000 * 4 + 200
    assert len({k.data_ptr() for k in keys}) <= 11


def test_a_cache_is_one_for_each_block():
    cache = KeyValueCache(3)
    assert (len(cache), cache.length) == (3, 0)
    first: Any = cache[0]
    first.append(*torch.ones(2, 1, 5, 1, 1))
    assert (cache.length, cache[1].length) == (5, 0)


def test_going_back_through_earlier_calls_is_refused_and_never_wrong():
    cache, query = LayerCache(), torch.ones(1, requires_grad=True)
    read = [(cache.append(*torch.ones(2, 1, 1, 1, 1))[0] * query).sum() for _ in range(4)]
    (gradient,) = torch.autograd.grad(read[-1], query)
    assert gradient.item() == 4
    with pytest.raises(RuntimeError, match="inplace operation"):
        read[2].backward()
