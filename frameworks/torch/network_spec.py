"""How a network is built, as stored in its file: by name, by a user's function, or with other layer sizes."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, JsonValue

from frameworks.torch.architectures import NamedArchitecture
from frameworks.torch.detector import DetectorSpec
from frameworks.torch.segmenter import SegmenterSpec
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen
from gauntlet.core.user_code import UserCode

if TYPE_CHECKING:
    import torch

Size = int | tuple[int, ...]


class UserNetwork(Frozen):
    """A network built by a user's function, `module:function`; its source travels with the weights."""

    kind: Literal["made"] = "made"
    code: UserCode
    arguments: dict[str, JsonValue] = Field(default_factory=dict)

    def build(self) -> "torch.nn.Module":
        """Call the function; raise StageError if it fails or does not return a module."""
        import torch

        function = self.code.function()
        try:
            network = function(**self.arguments)
        except Exception as error:  # the user's code may raise anything
            raise StageError(
                f"train.factory: {self.code.name} fails with the arguments {self.arguments}: "
                f"{type(error).__name__}: {error}. Fix: {_fix(error)}"
            ) from error
        if not isinstance(network, torch.nn.Module):
            kind = type(network).__name__
            raise StageError(f"train.factory: {self.code.name} returns {kind}; expected a torch.nn.Module")
        return network


Unpruned = NamedArchitecture | DetectorSpec | SegmenterSpec | UserNetwork


class ResizedNetwork(Frozen):
    """A network with some layers of other sizes, as pruning leaves it; building it needs no pruning library."""

    kind: Literal["resized"] = "resized"
    base: Annotated[Unpruned, Field(discriminator="kind")]
    attributes: dict[str, dict[str, Size]] = Field(description="by the module's path: in_channels, num_features, ...")
    tensors: dict[str, tuple[int, ...]] = Field(description="shapes of parameters and buffers, by their names")

    @classmethod
    def of(cls, base: Unpruned, network: "torch.nn.Module") -> Self:
        """Record how a network differs from the one that `base` builds."""
        original = base.build()
        old = dict(original.named_modules())
        attributes = {
            path: {name: size for name, size in _sizes(module).items() if _sizes(old[path]).get(name) != size}
            for path, module in network.named_modules()
        }
        shapes = {name: tuple(tensor.shape) for name, tensor in original.state_dict().items()}
        tensors = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
        return cls(
            base=base,
            attributes={path: sizes for path, sizes in attributes.items() if sizes},
            tensors={name: shape for name, shape in tensors.items() if shapes[name] != shape},
        )

    def build(self) -> "torch.nn.Module":
        """Build the base and change its sizes; changed tensors are zero."""
        import torch

        network = self.base.build()
        for path, sizes in self.attributes.items():
            for name, size in sizes.items():
                setattr(network.get_submodule(path), name, size)
        for full_name, shape in self.tensors.items():
            path, _, name = full_name.rpartition(".")
            module = network.get_submodule(path)
            old = getattr(module, name)
            new = torch.zeros(shape, dtype=old.dtype)
            setattr(module, name, torch.nn.Parameter(new) if isinstance(old, torch.nn.Parameter) else new)
        return network


def _fix(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "name a text file in one string, and open it beside the code: Path(__file__).parent / 'sizes.json'"
    return "set train.arguments"


def _sizes(module: "torch.nn.Module") -> dict[str, Any]:
    """Return a module's public integers, and tuples of them."""

    def is_size(value: object) -> bool:
        return all(type(number) is int for number in (value if isinstance(value, tuple) else (value,)))  # no bool

    return {name: value for name, value in vars(module).items() if not name.startswith("_") and is_size(value)}


def code_of(spec: Unpruned | ResizedNetwork) -> UserCode | None:
    """Return the code that building the network runs, besides this project's and torchvision's."""
    base = spec.base if isinstance(spec, ResizedNetwork) else spec
    return base.code if isinstance(base, UserNetwork) else None


NetworkSpec = Annotated[Unpruned | ResizedNetwork, Field(discriminator="kind")]
