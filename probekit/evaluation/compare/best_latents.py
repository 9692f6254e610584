"""The latents that say most about a label, and how well each does alone.

Axes: N examples, k latents.
"""

from typing import Any

import numpy as np

from probekit.activations.activations import Activations
from probekit.evaluation.fits.predict import predict
from probekit.evaluation.fits.stream import features_to_fit
from probekit.evaluation.plan import CurvePlan
from probekit.evaluation.scores.score import score, score_intervals
from probekit.latents.sparse import dead_latents
from probekit.points import Place
from probekit.probes.logistic.probe import LogisticProbe
from probekit.probes.problem import Labels, every_problem
from probekit.probes.sparse import feature_columns, rank_neurons
from probekit.probes.stream import take_some

MOST = 10
STRONGEST = 5  # rows of each


def best_latents(acts: Activations, place: Place, plan: CurvePlan) -> dict[str, Any]:
    """The `MOST` latents whose class means differ most on the training rows, best first; JSON-able.

    Of each: the score on test of a logistic probe of it alone with its interval, the share of rows on which it is not
    0, the class in whose training rows it is highest, and the rows where it is strongest.

    Args:
        acts: latents, one row for each example.
        place: of the latents.
        plan: of a curve of classes, without folds.

    Raises:
        DataError: every latent is 0 on all rows.
    """
    X = features_to_fit(acts, place, sparse=True)
    protocol, labels, n_classes = plan.grid.protocol, plan.grid.label_sets[0], plan.grid.n_classes
    train, test = protocol.train, protocol.test
    ranked = rank_neurons(take_some(X, train), labels[train]).neurons[:MOST]
    values = feature_columns(X, ranked)
    if not bool(values.any()):  # those that vary come first
        raise dead_latents(acts.meta["latents"][str(place)]["sae"])
    found = []
    for number, column in zip(ranked.tolist(), values.T, strict=True):
        alone = column[:, None]
        (probe,) = LogisticProbe().fit_many(alone[train], every_problem([Labels(labels[train], n_classes)], [1.0]))
        predictions = predict(probe, alone, test, labels, n_classes)
        ends = score_intervals(plan.bootstrap, predictions).get(plan.headline)
        means = [float(column[train][labels[train] == k].mean()) for k in range(n_classes)]
        strongest = np.argsort(-column.numpy(), kind="stable")[:STRONGEST]
        found.append(
            {
                "latent": number,
                "score": score(predictions)[plan.headline],
                "interval": None if ends is None else list(ends),
                "active": float((column != 0).double().mean()),
                "class": int(np.argmax(means)),
                "rows": [[acts.ids[row], float(column[row])] for row in strongest.tolist() if column[row] > 0],
            }
        )
    return {"place": str(place), "latents": found}
