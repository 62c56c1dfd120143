"""ONNX Runtime Web in headless Chromium."""

from typing import ClassVar, Literal

from pydantic import Field

from tasks.frozen import JsonObject
from tasks.targets import environments
from tasks.targets.base import BaseTarget


class OrtWeb(BaseTarget):
    """A page in a browser; its folder of JavaScript is an environment, its worker runs in this one."""

    kind: Literal["ort-web"] = "ort-web"
    backend: Literal["wasm", "webgpu"] = Field("wasm", description="WebAssembly with SIMD and threads, or WebGPU")
    browser: str = Field("chromium", description="its command, or its path")
    javascript: str = Field("web", description="environment with onnxruntime-web: its name, or a folder")
    engine: ClassVar[str] = "tasks.runtime.engines.web"

    def variant(self) -> tuple[str, ...]:
        """Return the backend."""
        return (self.backend,)

    def engine_options(self) -> JsonObject:
        """Return where everything is."""
        dist = environments.folder(self.javascript) / "node_modules" / "onnxruntime-web" / "dist"
        return {"backend": self.backend, "browser": self.browser, "dist": str(dist)}

    def unavailable(self) -> str | None:
        """Return why not: no JavaScript, no browser, or no GPU in it."""
        known = self.javascript in environments.ENVIRONMENTS
        return (environments.missing(self.javascript) if known else None) or super().unavailable()
