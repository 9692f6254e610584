"""scikit-learn's protocol of estimators, kept without its import: parameters, clones, tags and `score`.

`sklearn.base` imports pandas and scipy.stats, which together take longer than the fits of a small store. Whoever clones
a probe, searches over it or puts it into a pipeline has imported it already.
"""

import inspect
from typing import Any, Literal, Self

PLAIN = (type(None), bool, int, float, str)


class Parameterised:
    """What scikit-learn asks of an estimator beyond `fit` and `predict`, as its `BaseEstimator` has it."""

    predicts: Literal["classes", "numbers"]
    several_outputs: bool

    @classmethod
    def _get_param_names(cls) -> list[str]:
        return sorted(_defaults(cls))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters of the constructor by name; with `deep`, also those of estimators among them."""
        found = {}
        for name in self._get_param_names():
            value = getattr(self, name)
            if deep and _is_estimator(value):
                found |= {f"{name}__{inner}": each for inner, each in value.get_params().items()}
            found[name] = value
        return found

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name; raises a ValueError for an unknown one."""
        from sklearn.base import BaseEstimator

        return BaseEstimator.set_params(self, **params)  # pyright: ignore[reportArgumentType, reportReturnType]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The accuracy of a probe of classes, or R2 of a probe of numbers."""
        from sklearn.metrics import accuracy_score, r2_score

        scored = accuracy_score if self.predicts == "classes" else r2_score
        return float(scored(y, self.predict(X), sample_weight=sample_weight))  # pyright: ignore

    def __repr__(self) -> str:
        usual = _defaults(type(self))
        given = {name: repr(value) for name, value in self.get_params(deep=False).items()}
        shown = (f"{name}={text}" for name, text in given.items() if text != repr(usual[name]))
        return f"{type(self).__name__}({', '.join(shown)})"

    def get_metadata_routing(self) -> Any:
        """scikit-learn's record of whether `fit` and `score` take sample weights that are routed to them."""
        from sklearn.utils.metadata_routing import MetadataRequest, get_routing_for_object

        if (asked := vars(self).get("_metadata_request")) is not None:
            return get_routing_for_object(asked)
        requests = MetadataRequest(owner=self)
        for method in ("fit", "score"):
            if "sample_weight" in inspect.signature(getattr(self, method)).parameters:
                getattr(requests, method).add_request(param="sample_weight", alias=None)
        return requests

    def set_fit_request(self, *, sample_weight: bool | str | None = None) -> Self:
        """Say whether `fit` takes routed sample weights, and by which name."""
        return self._ask("fit", sample_weight)

    def set_score_request(self, *, sample_weight: bool | str | None = None) -> Self:
        """Say whether `score` takes routed sample weights, and by which name."""
        return self._ask("score", sample_weight)

    def _ask(self, method: str, sample_weight: bool | str | None) -> Self:
        requests = self.get_metadata_routing()
        getattr(requests, method).add_request(param="sample_weight", alias=sample_weight)
        self._metadata_request = requests
        return self

    def _repr_html_(self) -> str:
        from sklearn.utils import estimator_html_repr

        return estimator_html_repr(self)

    def __sklearn_tags__(self) -> Any:
        from sklearn.base import BaseEstimator
        from sklearn.utils import ClassifierTags, RegressorTags

        tags = BaseEstimator.__sklearn_tags__(self)  # pyright: ignore[reportArgumentType]
        tags.target_tags.required = True
        if self.predicts == "classes":
            tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags()
        else:
            tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags()
            tags.target_tags.multi_output = self.several_outputs
        return tags


def clone(estimator: Any) -> Any:
    """scikit-learn's `clone`, which is not imported for a probe whose parameters are numbers and texts.

    Raises:
        RuntimeError: the constructor does not keep a parameter as it is.
        TypeError: this is no estimator.
    """
    is_simple = isinstance(estimator, Parameterised) and not hasattr(estimator, "__sklearn_clone__")
    if is_simple and "_metadata_request" not in vars(estimator):
        params = estimator.get_params(deep=False)
        if all(isinstance(value, PLAIN) for value in params.values()):
            copy = type(estimator)(**params)
            if all(getattr(copy, name) is value for name, value in params.items()):
                return copy
    from sklearn import base

    return base.clone(estimator)


def check_is_fitted(probe: Any) -> None:
    """Raise scikit-learn's NotFittedError unless the probe has an attribute of a fit, whose name ends in "_"."""
    if not any(name.endswith("_") and not name.startswith("__") for name in vars(probe)):
        from sklearn.utils import validation

        validation.check_is_fitted(probe)


def _defaults(kind: type) -> dict[str, Any]:
    """The parameters of a constructor with their defaults."""
    if kind.__init__ is object.__init__:
        return {}
    own = list(inspect.signature(kind.__init__).parameters.values())[1:]
    if any(each.kind is each.VAR_POSITIONAL for each in own):
        raise RuntimeError(f"{kind.__name__} takes *args; name each parameter of an estimator, as scikit-learn asks")
    return {each.name: each.default for each in own if each.kind is not each.VAR_KEYWORD}


def _is_estimator(value: Any) -> bool:
    return hasattr(value, "get_params") and not isinstance(value, type)
