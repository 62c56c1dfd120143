"""ONNX Runtime on DirectML."""

from typing import ClassVar, Literal

from pydantic import Field

from tasks.targets.ort import OrtTarget


class OrtDirectMl(OrtTarget):
    """The DirectML provider: any GPU under Windows."""

    kind: Literal["ort-directml"] = "ort-directml"
    device_id: int = Field(0, ge=0, description="which adapter")
    provider: ClassVar[str] = "DmlExecutionProvider"

    def variant(self) -> tuple[str, ...]:
        """Return the adapter, where it is not the first."""
        return (str(self.device_id),) if self.device_id else ()

    def provider_options(self) -> dict[str, str]:
        """Return the adapter."""
        return {"device_id": str(self.device_id)}
