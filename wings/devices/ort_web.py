"""ONNX Runtime Web in headless Chromium."""

from typing import ClassVar, Literal

from pydantic import Field

from gauntlet.core.frozen import JsonObject
from gauntlet.targets import environments
from gauntlet.targets.base import BaseTarget

NPM_ENVIRONMENT = "web"
ENVIRONMENT = environments.RuntimeEnvironment(npm=("onnxruntime-web@1.30.0",))


class OrtWeb(BaseTarget):
    """A page in a browser; its JavaScript packages are an environment, its worker runs in this one."""

    kind: Literal["ort-web"] = "ort-web"
    backend: Literal["wasm", "webgpu"] = Field("wasm", description="WebAssembly with SIMD and threads, or WebGPU")
    browser: str = Field("chromium", description="command or path of the browser")
    known_options: ClassVar[tuple[JsonObject, ...]] = ({"backend": "wasm"}, {"backend": "webgpu"})
    engine: ClassVar[str] = "wings.devices.web_engine"
    named: ClassVar[tuple[str, ...]] = ("backend",)

    def engine_options(self) -> JsonObject:
        """Return backend, browser and the folder of the packages."""
        dist = environments.folder(NPM_ENVIRONMENT) / "node_modules" / "onnxruntime-web" / "dist"
        return {"backend": self.backend, "browser": self.browser, "dist": str(dist)}

    def missing(self) -> str | None:
        """Return whether its packages are missing."""
        return environments.missing(NPM_ENVIRONMENT) or super().missing()
