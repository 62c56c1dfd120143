"""Runs a model on some inputs, under an emulator: `answer.py MODEL INPUTS.npz OUTPUTS.npz`.

It imports numpy and ONNX Runtime and nothing of ours, because the Python that runs it may belong to another processor.
Both files hold one array a call and tensor, named `call/tensor`.
"""

import sys

import numpy as np
import onnxruntime as ort


def answer(model: str, inputs: str, outputs: str) -> None:
    """Run every call of the inputs' file, in its order."""
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
    answers = {
        f"{call}/{name}": value
        for call, feed in calls.items()
        for name, value in zip(names, session.run(names, feed), strict=True)
    }
    np.savez(outputs, allow_pickle=False, **answers)


if __name__ == "__main__":
    answer(*sys.argv[1:])
