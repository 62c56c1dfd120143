"""ONNX Runtime Web in headless Chromium."""

from typing import ClassVar, Literal

from pydantic import Field

from gauntlet.core.frozen import JsonObject
from gauntlet.targets import environments
from gauntlet.targets.base import BaseTarget


class OrtWeb(BaseTarget):
    """A page in a browser; its JavaScript packages are an environment, its worker runs in this one."""

    kind: Literal["ort-web"] = "ort-web"
    backend: Literal["wasm", "webgpu"] = Field("wasm", description="WebAssembly with SIMD and threads, or WebGPU")
    browser: str = Field("chromium", description="command or path of the browser")
    npm_environment: str = Field("web", description="environment with onnxruntime-web: its name, or a folder")
    known_options: ClassVar[tuple[JsonObject, ...]] = ({"backend": "wasm"}, {"backend": "webgpu"})
    engine: ClassVar[str] = "gauntlet.runtime.engines.web"
    named: ClassVar[tuple[str, ...]] = ("backend",)

    def engine_options(self) -> JsonObject:
        """Return backend, browser and the folder of the packages."""
        dist = environments.folder(self.npm_environment) / "node_modules" / "onnxruntime-web" / "dist"
        return {"backend": self.backend, "browser": self.browser, "dist": str(dist)}

    def unavailable(self) -> str | None:
        """Return why it cannot run here: no packages, no browser, or no GPU in it; or None."""
        known = self.npm_environment in environments.ENVIRONMENTS
        return (environments.missing(self.npm_environment) if known else None) or super().unavailable()
