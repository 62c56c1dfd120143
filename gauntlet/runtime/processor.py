"""Whether a model's INT8 outputs are exact on this processor, by the model's metadata.

ONNX Runtime uses instructions that saturate on x86 processors with AVX2 but neither AVX512-VNNI nor AVX-VNNI
(onnxruntime/core/mlas/lib/platform.cpp); older x86 processors, those with VNNI and Arm compute exactly.
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
"""The runtime's setting for unsigned weights, whose kernels do not saturate but are slower, even with VNNI."""
INSTRUCTIONS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "asimddp", "i8mm")
"""The extensions that kernels use."""

UnsupportedProcessorPolicy = Literal["warn", "refuse", "exact"]
"""What to do on a processor that the model is not made for; `exact` uses slower kernels that are exact."""


@dataclass(frozen=True)
class Processor:
    """A processor as the operating system describes it."""

    architecture: str
    flags: frozenset[str]
    name: str = ""

    @classmethod
    @cache
    def current(cls) -> Self:
        """Return this machine's; Linux lists its flags on x86 and its features on Arm, other systems neither."""
        try:
            text = Path("/proc/cpuinfo").read_text()
        except OSError:
            text = ""
        name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
        flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
        architecture = platform.machine()
        words = flags[1].split() if flags else ()
        return cls(architecture, frozenset(words), name[1] if name else platform.processor() or architecture)

    @property
    def instructions(self) -> list[str]:
        """Its extensions among `INSTRUCTIONS`."""
        return [name for name in INSTRUCTIONS if name in self.flags]

    @property
    def has_vnni(self) -> bool:
        """Whether one instruction multiplies bytes and sums the products in 32 bits."""
        return not self.flags.isdisjoint({"avx512_vnni", "avx_vnni"})

    @property
    def has_bf16(self) -> bool:
        """Whether it multiplies bfloat16 faster than float32."""
        return not self.flags.isdisjoint({"avx512_bf16", "amx_bf16"})

    @property
    def saturates(self) -> bool:
        """Whether sums of products of unsigned activations and signed weights saturate in an int16."""
        return self.architecture in ("x86_64", "AMD64") and "avx2" in self.flags and not self.has_vnni


def portability_metadata(verdict: str, *, needs_vnni: bool, elsewhere: UnsupportedProcessorPolicy) -> dict[str, str]:
    """Return the entry of a model's `metadata_props` that says where it may run."""
    needs = "x86-64 with AVX512-VNNI or AVX-VNNI, or Arm" if needs_vnni else "any"
    entry = {"verdict": verdict, "needs_vnni": needs_vnni, "least_processor": needs, "elsewhere": elsewhere}
    return {METADATA_KEY: json.dumps(entry)}


def session_settings(metadata: Mapping[str, str], processor: Processor) -> dict[str, str]:
    """Return the session settings that a model needs on this processor; warn, or raise `StageError`, by its policy."""
    try:
        needs = json.loads(metadata.get(METADATA_KEY, "{}"))
        needs_vnni, elsewhere = bool(needs.get("needs_vnni", False)), needs.get("elsewhere", "warn")
    except (ValueError, AttributeError):
        log.warning("the model's '%s' cannot be read; its outputs may be inexact on this processor", METADATA_KEY)
        return {}
    if not needs_vnni or not processor.saturates:
        return {}
    if elsewhere == "exact":
        return {EXACT_KERNELS: "1"}
    text = (
        "this INT8 model needs a processor with VNNI; on this one its sums saturate and its outputs are less accurate. "
        f"Fix: use a recipe with reduce_range: true, or the session setting {EXACT_KERNELS}=1"
    )
    if elsewhere == "refuse" or elsewhere not in get_args(UnsupportedProcessorPolicy):
        raise StageError(text)
    log.warning("%s", text)
    return {}
