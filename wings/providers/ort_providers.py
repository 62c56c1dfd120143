"""ONNX Runtime with several execution providers in order of preference."""

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from gauntlet.core.frozen import JsonObject
from gauntlet.targets.base import Precision
from gauntlet.targets.ort import OrtTarget

SUFFIX = "ExecutionProvider"
CPU = f"CPU{SUFFIX}"


def _full_name(name: str) -> str:
    return name if name.endswith(SUFFIX) else name + SUFFIX


class OrtProviders(OrtTarget):
    """A session that offers each node to its providers in order; every one must load, or the target is unavailable.

    Without `hybrid`, all multiplications must run on the first provider, as on every other target.
    """

    kind: Literal["ort-providers"] = "ort-providers"
    providers: tuple[str, ...] = Field(
        (CPU,), min_length=1, description="in order, with or without 'ExecutionProvider': [CUDA, CPU]"
    )
    options_by_provider: dict[str, dict[str, str]] = Field(
        default_factory=dict, description="the providers' own options: {OpenVINO: {device_type: CPU}}"
    )
    hybrid: bool = Field(
        False, description="whether multiplications may run on any of the providers, not the first alone"
    )
    precision: Precision = Field("f32", description="that the outputs must show")
    known_options: ClassVar[tuple[JsonObject, ...]] = ()
    provider: ClassVar[str] = CPU
    named_if_changed: ClassVar[dict[str, str]] = {"hybrid": "hybrid", "precision": "{}"}

    @field_validator("providers", mode="before")
    @classmethod
    def _from_text(cls, names: Any) -> Any:
        """Split the text of a command line at plus signs: `providers=CUDA+CPU`."""
        return names.split("+") if isinstance(names, str) else names

    @field_validator("providers")
    @classmethod
    def _each_once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        full = tuple(map(_full_name, names))
        if len(set(full)) < len(full):
            raise ValueError(f"each provider may be listed once, got {', '.join(names)}")
        if CPU in full[:-1]:
            raise ValueError(
                f"the CPU provider takes every node, so that {names[-1]} after it would get none; list it last"
            )
        return full

    @field_validator("options_by_provider")
    @classmethod
    def _by_full_name(cls, options: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
        return {_full_name(name): values for name, values in options.items()}

    @model_validator(mode="after")
    def _options_fit(self) -> Self:
        if unknown := self.options_by_provider.keys() - set(self.providers):
            listed = ", ".join(self.providers)
            raise ValueError(
                f"options_by_provider: {min(unknown)} is not in providers ({listed}); add it there, or remove it"
            )
        if self.hybrid and len(self.providers) == 1:
            raise ValueError(f"hybrid: there is one provider alone, {self.providers[0]}; list a second one")
        return self

    def name_suffix(self) -> tuple[str, ...]:
        """Return the providers, and the options in the name."""
        return (*(name.removesuffix(SUFFIX).lower() for name in self.providers), *super().name_suffix())

    def engine_options(self) -> JsonObject:
        """Return the providers with their options, and those that may multiply."""
        first, *others = self.providers
        return {
            "provider": first,
            "provider_options": {**self.options_by_provider.get(first, {})},
            "others": [[name, {**self.options_by_provider.get(name, {})}] for name in others],
            "required": [*self.providers],
            "accepted": [*self.providers] if self.hybrid else [first],
        }
