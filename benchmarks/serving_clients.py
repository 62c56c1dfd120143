"""NVIDIA's own clients, unmodified, against `gauntlet serve`: tritonclient in JSON and binary, and perf_analyzer.

    python benchmarks/serving_clients.py BUNDLE --environment PYTHON

PYTHON is of an environment with `tritonclient[http]` 2.47.0, whose wheel holds the perf_analyzer binary, and
`nvidia-cuda-runtime-cu12`, which the binary loads; it also needs Debian's libb64-0d. Exits with 1 when a client fails.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from serving_peers import gauntlet

from gauntlet.bundle.bundle import Bundle

TRITONCLIENT = """
import sys, numpy as np, tritonclient.http as http
url, name, golden = sys.argv[1:]
client = http.InferenceServerClient(url)
assert client.is_server_live() and client.is_server_ready() and client.is_model_ready(name)
metadata, config = client.get_model_metadata(name), client.get_model_config(name)
print("extensions", client.get_server_metadata()["extensions"])
stored = np.load(golden)
for binary in (True, False):
    inputs = []
    for tensor in metadata["inputs"]:
        array = stored["inputs/" + tensor["name"]][:3]
        one = http.InferInput(tensor["name"], array.shape, tensor["datatype"])
        one.set_data_from_numpy(array, binary_data=binary)
        inputs.append(one)
    outputs = [http.InferRequestedOutput(t["name"], binary_data=binary) for t in metadata["outputs"]]
    result = client.infer(name, inputs, outputs=outputs, request_id="7", timeout=10_000_000)
    for tensor in metadata["outputs"]:
        wanted = stored["outputs/" + tensor["name"]][:3]
        assert np.allclose(result.as_numpy(tensor["name"]), wanted, rtol=1e-2, atol=1e-2), tensor
    pending = [client.async_infer(name, inputs, outputs=outputs) for _ in range(8)]
    assert all(p.get_result().get_response()["model_name"] == name for p in pending)
    print("binary" if binary else "JSON", "ok")
assert client.get_inference_statistics(name)["model_stats"][0]["inference_count"] >= 54
assert [m["state"] for m in client.get_model_repository_index()] == ["READY"]
client.load_model(name)
client.unload_model(name)
assert not client.is_model_ready(name)
client.load_model(name)
try:
    client.infer(name, inputs[:0])
except http.InferenceServerException as error:
    print("refused:", error)
else:
    raise SystemExit("an empty request was not refused")
"""


def main() -> int:
    """Run both clients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--environment", type=Path, required=True, metavar="PYTHON")
    parser.add_argument("--requests", type=int, default=50, help="of a measurement of perf_analyzer")
    options = parser.parse_args()
    bundle, python = Bundle.open(options.bundle.resolve()), options.environment.absolute()
    name = bundle.contract.name
    libraries = next(python.parents[1].glob("lib/python*/site-packages/nvidia/cuda_runtime/lib"), None)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries)} if libraries else dict(os.environ)
    shapes = [
        word
        for spec in bundle.contract.signature.inputs
        for word in (
            "--shape",
            f"{spec.name}:{','.join(str(a) if isinstance(a, int) else '1' for a in spec.shape[1:])}",
        )
    ]
    failed = False
    with tempfile.TemporaryDirectory() as folder, gauntlet(bundle.folder, name, {}, "--deadline-ms", "10000") as server:
        address = f"127.0.0.1:{server.port}"
        golden = bundle.folder / "golden.npz"
        commands = [[str(python), "-c", TRITONCLIENT, address, name, str(golden)]]
        analyzer = [str(python.with_name("perf_analyzer")), "-m", name, "-u", address, *shapes]
        analyzer += ["--measurement-mode", "count_windows", "--measurement-request-count", str(options.requests)]
        analyzer += ["--stability-percentage", "999"]  # whether it works is asked here, not how fast
        for kind in ("binary", "json"):
            formats = ["--input-tensor-format", kind, "--output-tensor-format", kind]
            commands.append([*analyzer, *formats, "--concurrency-range", "1:4:3"])
        commands.append([*analyzer, "--request-rate-range", "20", "--request-distribution", "poisson"])
        for command in commands:
            done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
            print("$", " ".join("..." if "\n" in word else word for word in command), f"-> {done.returncode}")
            print(done.stdout[-1500:], done.stderr[-500:])
            failed = failed or done.returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
