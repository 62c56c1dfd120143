"""Run a model on given inputs under an emulator: `run_emulated.py MODEL INPUTS.npz OUTPUTS.npz`.

It imports only NumPy and ONNX Runtime, because it may run in the Python of another processor architecture. Both files
hold one array for each call and tensor, named `call/tensor`.
"""

import sys

import numpy as np
import onnxruntime as ort


def run(model: str, inputs: str, outputs: str) -> None:
    """Run all calls of the input file in order."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs() if output.type.startswith("tensor(")]
    calls: dict[str, dict[str, object]] = {}
    with np.load(inputs, allow_pickle=False) as file:
        for key in file.files:
            call, name = key.split("/", 1)
            calls.setdefault(call, {})[name] = file[key]
    results = {
        f"{call}/{name}": value
        for call, feed in calls.items()
        for name, value in zip(names, session.run(names, feed), strict=True)
    }
    np.savez(outputs, allow_pickle=False, **results)


if __name__ == "__main__":
    run(*sys.argv[1:])
