"""Load a bundle to predict with it: `gauntlet.load`, which uses none that is damaged or not signed as asked."""

import logging
import math
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from gauntlet.bundle.bundle import Bundle
from gauntlet.bundle.predictor import Predictor
from gauntlet.bundle.trust import trusted
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.core.frozen import Frozen, Number
from gauntlet.core.kinds import kinds, required
from gauntlet.metrics.error_metrics import max_abs_error, max_rel_error


def bundle_at(source: str | Path) -> Path:
    """Return the bundle at a path, or the one that an address such as `models:/NAME@ALIAS` names now."""
    scheme, colon, _ = str(source).partition(":")
    registered = kinds("address").get(scheme) if colon else None
    path: Path = registered(str(source)).path() if registered else Path(source)
    return path


def load_bundle(path: Path, *, threads: int | None = None, provider: str | None = None) -> Predictor:
    """See `gauntlet.load`."""
    bundle = Bundle.open(path)
    for line in refusals(bundle):
        raise ConfigError(f"{path}: {line}. Fix: copy the bundle again, or make it anew with: gauntlet bundle RUN")
    predictor = Predictor(bundle, threads=threads, provider=provider)
    if provider and bundle.golden().outputs:
        worst, allowed = max(golden_differences(predictor), key=_error), predictor.contract.golden_tolerance
        if not _error(worst) <= allowed:
            apart = f"output {worst.output!r} differs from its golden values by {_error(worst):.3g} of the largest"
            raise StageError(f"{path}: on {provider}, {apart}; allowed: {allowed:.3g}. Fix: choose another provider")
    if predictor.not_as_raced:
        logging.getLogger("gauntlet").warning(predictor.not_as_raced)
    return predictor


def refusals(bundle: Bundle) -> Iterator[str]:
    """Yield why a bundle may not be used: its damage, and a missing signature where the trust policy asks for one.

    `ConfigError` when the policy or a key cannot be read, or nothing that is installed verifies signatures.
    """
    yield from bundle.damage()
    where, keys = trusted()
    if where:
        verify = required("signature", "verify", where)
        if not any(result.trusted for key in keys for result in verify(bundle, key)):
            yield f"no signature by a key of {where}. Sign it with: gauntlet bundle RUN --key KEY.pem"


class GoldenDifference(Frozen):
    """The largest difference of one output from its golden values."""

    output: str
    max_abs_error: Number
    max_rel_error: Number = Field(description="over the largest magnitude of the golden output")


def _error(difference: GoldenDifference) -> float:
    return math.inf if math.isnan(difference.max_rel_error) else difference.max_rel_error


def golden_differences(predictor: Predictor) -> tuple[GoldenDifference, ...]:
    """Run the golden inputs in the predictor's session, and compare; a missing or misshapen output is infinitely off.

    Raises:
        StageError: when the runtime fails, or when there are no golden outputs to compare.
    """
    case = predictor.bundle.golden()
    if not case.outputs:
        raise StageError("the bundle has no golden outputs")
    return differences(predictor.run(case.inputs), case.outputs)


def differences(actual: NamedArrays, golden: NamedArrays) -> tuple[GoldenDifference, ...]:
    """Compare outputs with golden ones; a missing or misshapen output is infinitely off."""
    results = []
    for name, expected in golden.items():
        fits = name in actual and actual[name].shape == expected.shape
        errors = [kind(actual[name], expected) if fits else math.inf for kind in (max_abs_error, max_rel_error)]
        results.append(GoldenDifference(output=name, max_abs_error=errors[0], max_rel_error=errors[1]))
    return tuple(results)
