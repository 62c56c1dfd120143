"""The bundle's `README.md`: what the model is, how it was proven, and how to use it."""

from gauntlet.bundle.contract import Contract
from gauntlet.bundle.evidence import gates_of, winner_of
from gauntlet.core.run_report import RunReport
from gauntlet.core.signature import Preprocessing, TensorSpec

MOST_LABELS = 20

TEXT = """\
# {name}

{task} model, packaged from the candidate `{candidate}` of run `{run}`. {reason}.

| | |
|---|---|
{facts}

## Use it

```console
gauntlet verify BUNDLE             # digests, signatures and golden outputs, on this machine
gauntlet predict BUNDLE {argument}
```

```python
import gauntlet

predictor = gauntlet.load("BUNDLE")
{example}
```

`mlflow.pyfunc.load_model(FOLDER)` loads the unpacked bundle. `model.onnx` alone runs in any ONNX Runtime; its callers
then do the preprocessing in `contract.json` themselves.

## Evidence

{passed} of {gates} gates passed. `report.json` has every check with its value and its limit, `provenance/` the same as
in-toto statements, `bom.json` the bill of materials. `golden.npz` has real samples with the outputs of this file and of
the source model. The speed was measured on {processor}, target `{target}`; elsewhere it may be different.
"""


def model_card(contract: Contract, report: RunReport) -> str:
    """Return the text of `README.md`."""
    signature, images = contract.signature, contract.signature.preprocessing is not None
    array = signature.inputs[0].name
    example = 'print(predictor("image.png").text())' if images else f'outputs = predictor.run({{"{array}": samples}})'
    return TEXT.format(
        name=contract.name,
        task=signature.task.capitalize() if signature.task != "arrays" else "A",
        candidate=contract.candidate,
        run=contract.run_id,
        reason=report.reason[:1].upper() + report.reason[1:],
        facts="\n".join(f"| {name} | {value} |" for name, value in _facts(contract, report).items()),
        argument="IMAGE..." if images else "INPUTS.npz",
        example=example,
        gates=len(gates_of(report)),
        passed=sum(not any(check.blocks for check in entry.checks) for entry in gates_of(report)),
        processor=contract.processor or "the machine of the run",
        target=contract.target,
    )


def _facts(contract: Contract, report: RunReport) -> dict[str, str]:
    signature, entry = contract.signature, winner_of(report)
    facts = {f"input `{spec.name}`": _shape(spec) for spec in signature.inputs}
    facts |= {f"output `{spec.name}`": _shape(spec) for spec in signature.outputs}
    if signature.preprocessing is not None:
        facts["preprocessing"] = _preprocessing(signature.preprocessing)
    if signature.labels:
        more = f" and {len(signature.labels) - MOST_LABELS} more" if len(signature.labels) > MOST_LABELS else ""
        facts["labels"] = ", ".join(signature.labels[:MOST_LABELS]).replace("|", "\\|") + more
    if entry.accuracy is not None:
        facts["accuracy on the test images"] = f"{100 * entry.accuracy:.1f} %"
    if entry.size_bytes is not None:
        facts["size"] = f"{entry.size_bytes / 1e6:.1f} MB"
    facts |= {f"latency, batch {one.batch}": f"{one.median_ms:.3g} ms" for one in contract.latencies}
    return facts


def _shape(spec: TensorSpec) -> str:
    return f"{spec.dtype}, {' x '.join(map(str, spec.shape)) or 'one value'}"


def _preprocessing(how: Preprocessing) -> str:
    resize = "the whole image is stretched" if how.resize == "stretch" else "the largest centered part is scaled"
    text = f"{resize} to {how.width} x {how.height} pixels; (pixel / 255 - {list(how.mean)}) / {list(how.std)}"
    return text + ("; then histograms of oriented gradients" if how.hog else "")
