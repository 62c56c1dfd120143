"""Requests and responses of the Open Inference Protocol v2, REST; the same classes document the API.

Spec: https://github.com/kserve/open-inference-protocol, specification/protocol/inference_rest.md, and the binary tensor
extension: https://kserve.github.io/website/latest/modelserving/data_plane/binary_tensor_data_extension.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

Parameters = dict[str, StrictBool | StrictInt | StrictFloat | StrictStr]
Axis = Annotated[StrictInt, Field(ge=0, le=2**31)]


class Message(BaseModel):
    """Base class; unknown fields are ignored, as the protocol allows."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())


class RequestInput(Message):
    """One input tensor: `data` in JSON, or `binary_data_size` bytes behind the JSON."""

    name: StrictStr
    shape: list[Axis] = Field(max_length=32)
    datatype: StrictStr
    parameters: Parameters = Field({}, description="binary_data_size: bytes of this tensor behind the JSON")
    data: Any = Field(None, description="values in row-major order, nested or flat")


class RequestOutput(Message):
    """One output that the client asks for."""

    name: StrictStr
    parameters: Parameters = Field({}, description="binary_data: whether this output is to be binary")


class InferRequest(Message):
    """Body of `infer`."""

    id: StrictStr | None = None
    parameters: Parameters = Field(
        {}, description="binary_data_output: whether outputs are to be binary; timeout: the deadline in microseconds"
    )
    inputs: list[RequestInput] = Field(min_length=1)
    outputs: list[RequestOutput] | None = Field(None, description="all of them where it is missing or empty")


class ResponseOutput(Message):
    """One output tensor."""

    name: str
    shape: list[int]
    datatype: str
    parameters: Parameters | None = None
    data: Any = None


class InferResponse(Message):
    """Outputs of `infer`."""

    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[ResponseOutput]


class TensorMetadata(Message):
    """One input or output; -1 is a dynamic axis."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(Message):
    """What a model takes and returns."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]
    parameters: dict[str, Any] = {}


class ServerMetadata(Message):
    """The server, and the extensions of the protocol that it speaks."""

    name: str
    version: str
    extensions: list[str]


class IndexRequest(Message):
    """Body of the repository's index."""

    ready: StrictBool = Field(False, description="list only models that are ready")


class LoadRequest(Message):
    """Body of load and unload; no parameter is supported: a client names no file and overrides no configuration."""

    parameters: dict[str, Any] = {}


class IndexEntry(Message):
    """One model of the repository."""

    name: str
    version: str = ""
    state: str = Field(description="READY, LOADING or UNAVAILABLE")
    reason: str = ""


class PredictResponse(Message):
    """Predictions for images, in the terms of the model's problem."""

    model_name: str
    model_version: str
    predictions: list[dict[str, Any]]
    milliseconds: float = Field(description="from the request's arrival")


class Feedback(Message):
    """The right classes of one request."""

    request_id: StrictStr = Field(
        min_length=1, max_length=128, description="`x-request-id` of the request, or of its response"
    )
    labels: list[Annotated[StrictInt, Field(le=2**31)] | StrictStr] = Field(
        min_length=1, max_length=4096, description="one for each of its samples: the name of a class, or its index"
    )


class FeedbackRequest(Message):
    """Labels that became known after their requests."""

    feedback: list[Feedback] = Field(min_length=1, max_length=4096)


class FeedbackResponse(Message):
    """What becomes of the labels."""

    accepted: int = Field(description="requests whose labels are logged")
    not_sampled: int = Field(description="requests that are not in the log, because only a share is")


class ErrorResponse(Message):
    """Why a request was refused."""

    error: str
