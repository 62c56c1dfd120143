"""Whether a model's integer answers are right on this processor, as far as the model itself knows.

ONNX Runtime takes instructions that saturate on x86 processors with AVX2 and neither AVX512-VNNI nor AVX-VNNI
(onnxruntime/core/mlas/lib/platform.cpp); older x86 ones, those with VNNI and Arm's compute exactly.
"""

import json
import logging
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, Self, get_args

from gauntlet.core.errors import StageError

log = logging.getLogger("gauntlet")

METADATA_KEY = "gauntlet.portability"
EXACT_KERNELS = "session.x64quantprecision"
"""The runtime's own switch to unsigned weights, whose kernels do not saturate: slower, with VNNI too."""
INSTRUCTIONS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "asimddp", "i8mm")
"""The extensions that kernels ask for."""

UnsupportedProcessorPolicy = Literal["warn", "refuse", "exact"]
"""What loading does on a processor that the model is not made for; `exact` takes slower kernels that are right."""


@dataclass(frozen=True)
class Processor:
    """A processor, as the operating system describes it."""

    architecture: str
    flags: frozenset[str]
    name: str = ""

    @classmethod
    @cache
    def current(cls) -> Self:
        """Return this machine's, as far as the system describes it: Linux lists flags on x86 and features on Arm."""
        try:
            text = Path("/proc/cpuinfo").read_text()
        except OSError:
            text = ""
        name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
        flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
        architecture = platform.machine()
        return cls(
            architecture,
            frozenset(flags[1].split() if flags else ()),
            name[1] if name else platform.processor() or architecture,
        )

    @property
    def instructions(self) -> list[str]:
        """The extensions of `INSTRUCTIONS` that it has."""
        return [name for name in INSTRUCTIONS if name in self.flags]

    @property
    def has_vnni(self) -> bool:
        """Whether one instruction multiplies bytes and sums the products in 32 bits."""
        return not self.flags.isdisjoint({"avx512_vnni", "avx_vnni"})

    @property
    def saturates(self) -> bool:
        """Whether products of unsigned activations and signed weights meet in an int16 here."""
        return self.architecture in ("x86_64", "AMD64") and "avx2" in self.flags and not self.has_vnni


def portability_metadata(verdict: str, *, needs_vnni: bool, elsewhere: UnsupportedProcessorPolicy) -> dict[str, str]:
    """Return what a model's `metadata_props` say of where it may run."""
    needs = "x86-64 with AVX512-VNNI or AVX-VNNI, or Arm" if needs_vnni else "any"
    told = {"verdict": verdict, "needs_vnni": needs_vnni, "least_processor": needs, "elsewhere": elsewhere}
    return {METADATA_KEY: json.dumps(told)}


def session_settings(metadata: Mapping[str, str], processor: Processor) -> dict[str, str]:
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
    if elsewhere == "refuse" or elsewhere not in get_args(UnsupportedProcessorPolicy):
        raise StageError(text)
    log.warning("%s", text)
    return {}
