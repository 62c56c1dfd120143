"""Whether a model's integer answers are right on this processor, as far as the model itself knows.

ONNX Runtime takes instructions that saturate on x86 processors with AVX2 and neither AVX512-VNNI nor AVX-VNNI
(onnxruntime/core/mlas/lib/platform.cpp); older x86 ones, those with VNNI and Arm's compute exactly.
"""

import json
import logging
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from tasks.errors import StageError

log = logging.getLogger("gauntlet")

METADATA_KEY = "gauntlet.portability"
EXACT_KERNELS = "session.x64quantprecision"
"""The runtime's own switch to unsigned weights, whose kernels do not saturate: slower, with VNNI too."""

Elsewhere = Literal["warn", "refuse", "exact"]
"""What loading does on a processor that the model is not made for; `exact` takes slower kernels that are right."""


@dataclass(frozen=True)
class Processor:
    """A processor, as the operating system describes it."""

    architecture: str
    flags: frozenset[str]

    @property
    def saturates(self) -> bool:
        """Whether ONNX Runtime's products of unsigned activations and signed weights meet in an int16 here."""
        vnni = {"avx512_vnni", "avx_vnni"} & self.flags
        return self.architecture in ("x86_64", "AMD64") and "avx2" in self.flags and not vnni


@cache
def this_processor() -> Processor:
    """Return this machine's; on a system that does not list its processor's flags, one without any."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return Processor(platform.machine(), frozenset(flags))


def stamp(verdict: str, *, needs_vnni: bool, elsewhere: Elsewhere) -> dict[str, str]:
    """Return what a model's `metadata_props` say of where it may run."""
    needs = "x86-64 with AVX512-VNNI or AVX-VNNI, or Arm" if needs_vnni else "any"
    told = {"verdict": verdict, "needs_vnni": needs_vnni, "least_processor": needs, "elsewhere": elsewhere}
    return {METADATA_KEY: json.dumps(told)}


def settings_for(metadata: Mapping[str, str], processor: Processor) -> dict[str, str]:
    """Return the settings that a session of this model needs on this processor; warn where the model asks for that.

    Raises:
        StageError: when the model refuses to run here.
    """
    try:
        told = json.loads(metadata.get(METADATA_KEY, "{}"))
        needs_vnni, elsewhere = bool(told.get("needs_vnni", False)), told.get("elsewhere", "warn")
    except (ValueError, AttributeError):
        log.warning("the model's '%s' cannot be read; whether its answers are right here is not known", METADATA_KEY)
        return {}
    if not needs_vnni or not processor.saturates:
        return {}
    if elsewhere == "exact":
        return {EXACT_KERNELS: "1"}
    text = (
        "this INT8 model needs a processor with VNNI; here its sums saturate and its answers are worse. "
        f"Way out: a recipe with 7-bit weights (reduce_range), or the session setting {EXACT_KERNELS}=1"
    )
    if elsewhere == "refuse" or elsewhere not in get_args(Elsewhere):
        raise StageError(text)
    log.warning("%s", text)
    return {}
