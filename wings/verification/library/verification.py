"""Prove a bundle again, without a server or a network: `gauntlet verify`."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import Field, computed_field

from gauntlet.bundle.bundle import Bundle, DamagedBundle, archive
from gauntlet.bundle.contract import Contract
from gauntlet.bundle.loading import GoldenDifference, golden_differences
from gauntlet.bundle.predictor import Predictor
from gauntlet.core.errors import StageError, one_line
from gauntlet.core.frozen import Frozen, Number
from gauntlet.runtime.processor import Processor
from wings.verification.library.signing import SignatureResult, verify_signatures


class Verification(Frozen):
    """What was proven of a bundle on this machine, and what could not be."""

    bundle: str
    digest: str = Field("", description="SHA-256 of the manifest, and so of every file in it")
    files: int = Field(0, description="number of files with a digest")
    damage: tuple[str, ...] = Field((), description="files that are missing, changed or added, each with its name")
    signatures: tuple[SignatureResult, ...] = ()
    golden: tuple[GoldenDifference, ...] = ()
    golden_tolerance: Number = Field(0.0, description="largest relative difference that is allowed")
    failures: tuple[str, ...] = Field((), description="what else failed")
    unproven: tuple[str, ...] = Field((), description="what cannot be reproduced here, and why")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def passed(self) -> bool:
        """Whether everything that can be proven here holds."""
        return not (self.damage or self.failures)


def verify(path: Path, key: Path | None = None) -> Verification:
    """Verify a bundle's digests, its signatures, and its golden outputs on this processor.

    With `key`, a bundle without a signature by this public key, or a certificate of the file, fails.
    `ConfigError` when there is no bundle, or no usable key.
    """
    try:
        bundle = Bundle.open(path)
    except DamagedBundle as error:
        return Verification(bundle=str(path), damage=(str(error),))
    damage = tuple(bundle.damage())
    signatures = verify_signatures(bundle, key)
    if not damage and path.is_file() and not _is_as_archived(path, bundle.folder):
        damage = (f"{path.name}: changed outside of its files, or packed by another program",)
    failures = [f"{signature.file}: {signature.problem}" for signature in signatures if signature.problem]
    if key is not None and not any(signature.trusted for signature in signatures):
        failures.append(f"no signature by {key}")
    result = Verification(
        bundle=str(path),
        digest=bundle.digest,
        files=len(bundle.manifest.files),
        damage=damage,
        signatures=signatures,
        failures=tuple(failures),
        golden_tolerance=bundle.contract.golden_tolerance,
    )
    return result if damage else _with_golden(result, bundle)


def _with_golden(result: Verification, bundle: Bundle) -> Verification:
    """Add the comparison of the golden outputs; a damaged model is never loaded."""
    limit, unproven = result.golden_tolerance, tuple(_unproven(bundle.contract))
    try:
        predictor = Predictor(bundle)
        unproven = (*filter(None, [predictor.not_as_raced]), *unproven)
        golden = golden_differences(predictor)
    except (StageError, DamagedBundle) as error:
        failure = f"golden outputs cannot be computed: {one_line(error)}"
        return result.replace(failures=(*result.failures, failure), unproven=unproven)
    off = [output for output in golden if not output.max_rel_error <= limit]  # NaN is off, too
    failures = [f"golden output {g.output!r} differs by {g.max_rel_error:.3g}, allowed {limit:.3g}" for g in off]
    return result.replace(golden=golden, failures=(*result.failures, *failures), unproven=unproven)


def _unproven(contract: Contract) -> Iterator[str]:
    """Yield what the run proved and this machine cannot."""
    here = Processor.current()
    missing = [name for name in contract.instructions if name not in here.instructions]
    if contract.processor and missing:
        yield (
            f"exact outputs: this processor lacks {', '.join(missing)} of {contract.processor}, which computed them; "
            "integer kernels may round differently"
            + (", and saturate here" if here.saturates and {"avx512_vnni", "avx_vnni"} & set(missing) else "")
        )
    yield "accuracy and latency: the test data and the machine of the run are not in the bundle (see report.json)"
    libraries = ", ".join(library.name for library in contract.signature.operator_libraries)
    if libraries:
        yield f"custom operators: the libraries {libraries} are not in the bundle"
    if contract.signature.task == "classification" and not contract.signature.labels:
        yield "labels: the signature has none, so predictions name classes by number"


def _is_as_archived(path: Path, folder: Path) -> bool:
    """Tell whether a `.zip` is what `archive` writes for the files in the folder, byte by byte."""
    with _Comparison(path) as expected:
        archive(folder, expected)
        return not expected.different and not expected.read(1)


class _Comparison(io.BufferedReader):
    """Takes what is written to a file, and compares it with one that exists."""

    def __init__(self, expected: Path) -> None:
        super().__init__(io.FileIO(expected))
        self.different: set[int] = set()  # where writes begin; a header is written twice, at last with its checksum

    def write(self, content: Any) -> int:
        place = self.tell()
        same = self.read(len(content)) == bytes(content)
        (self.different.discard if same else self.different.add)(place)
        self.seek(place + len(content))
        return len(content)
