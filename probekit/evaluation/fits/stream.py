"""A place of a store as a stream of rows, for fits on more rows than memory holds."""

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from probekit.activations.store.reader import Store
from probekit.points import PointSpec
from probekit.probes.logistic.features import Stream


def stream_of(store: Store, key: PointSpec) -> Stream:
    """The rows of one place, shard by shard; every pass reads them again, and two shards are in memory at a time.

    Labels and weights of a problem are in the order of `store[key]`: one row per example, or, where several or all
    positions were kept, the rows of example 0 first.

    Raises:
        UnknownPoint: the store has no such place.
        StorageError: a shard is missing or damaged.
    """
    place = store._known(key)
    order = np.concatenate([store.layout.index(place, examples) for examples in store.shard_examples()])

    def read() -> Iterator[Tensor]:
        return (values for _, values in store.shards(place))

    width = store.meta["widths"][list(store).index(place)]
    return Stream(len(order), width, read, order)
