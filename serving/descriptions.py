"""What the protocol says of a model: metadata, and the configuration extension, without which some clients stop."""

from typing import Any

from gauntlet.core.signature import TensorSpec
from serving.open_inference import DATATYPES
from serving.protocol import ModelMetadata, TensorMetadata
from serving.served_model import ServedModel

PLATFORM = "onnxruntime_onnx"


def metadata(model: ServedModel) -> ModelMetadata:
    """Return the inputs and outputs of a model."""
    contract = model.predictor.contract
    return ModelMetadata(
        name=model.name,
        versions=[model.version],
        platform=PLATFORM,
        inputs=[_tensor(spec) for spec in model.signature.inputs],
        outputs=[_tensor(spec) for spec in model.signature.outputs],
        parameters={
            "digest": model.digest,
            "run_id": contract.run_id,
            "candidate": contract.candidate,
            "task": model.signature.task,
            "takes_images": model.takes_images,
            "max_batch": model.max_batch,
        },
    )


def configuration(model: ServedModel, max_rows: int) -> dict[str, Any]:
    """Return a model's configuration in Triton's form; `max_rows` is what one request may have at most.

    Spec: Triton's model configuration extension; without a batch axis, `max_batch_size` is 0 and the dimensions are
    whole shapes.
    """
    first = 1 if model.max_batch else 0

    def dimensions(spec: TensorSpec) -> dict[str, Any]:
        kind = DATATYPES[spec.dtype]
        name = "STRING" if kind == "BYTES" else kind
        return {"name": spec.name, "data_type": f"TYPE_{name}", "dims": _shape(spec)[first:]}

    config: dict[str, Any] = {
        "name": model.name,
        "platform": PLATFORM,
        "backend": "onnxruntime",
        "max_batch_size": max_rows if model.max_batch else 0,
        "input": [dimensions(spec) for spec in model.signature.inputs],
        "output": [dimensions(spec) for spec in model.signature.outputs],
    }
    if model.max_batch and not model.apart:
        config["dynamic_batching"] = {"preferred_batch_size": [model.max_batch], "max_queue_delay_microseconds": 0}
    return config


def _tensor(spec: TensorSpec) -> TensorMetadata:
    return TensorMetadata(name=spec.name, datatype=DATATYPES[spec.dtype], shape=_shape(spec))


def _shape(spec: TensorSpec) -> list[int]:
    return [axis if isinstance(axis, int) else -1 for axis in spec.shape]
