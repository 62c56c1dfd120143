"""How a network is built, as it is written into its file: by name, by a user's function, or with other sizes."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, JsonValue

from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen
from gauntlet.core.user_code import UserCode
from gauntlet.frameworks.torch.architectures import NamedArchitecture

if TYPE_CHECKING:
    import torch

Size = int | tuple[int, ...]


class UserNetwork(Frozen):
    """How to build a network by a user's function, `module:function`; its source travels with the weights."""

    kind: Literal["made"] = "made"
    code: UserCode
    arguments: dict[str, JsonValue] = Field(default_factory=dict)

    def build(self) -> "torch.nn.Module":
        """Call the function; the weights are whatever it gives them.

        Raises:
            StageError: when it fails, or returns something else.
        """
        import torch

        make: Callable[..., Any] = self.code.function()
        try:
            made = make(**self.arguments)
        except Exception as error:  # the user's code may raise anything
            raise StageError(
                f"train.factory: {self.code.name} fails with the arguments {self.arguments}: "
                f"{type(error).__name__}: {error}; train.arguments names what it is called with"
            ) from error
        if not isinstance(made, torch.nn.Module):
            raise StageError(f"train.factory: {self.code.name} returns {type(made).__name__}; return a torch.nn.Module")
        return made


class ResizedNetwork(Frozen):
    """How to build a network, and then to give some of its layers other sizes.

    It needs nothing of whatever chose the sizes: the exporter builds the network without it.
    """

    kind: Literal["resized"] = "resized"
    base: Annotated[NamedArchitecture | UserNetwork, Field(discriminator="kind")]
    attributes: dict[str, dict[str, Size]] = Field(description="by the module's path: in_channels, num_features, ...")
    tensors: dict[str, tuple[int, ...]] = Field(description="shapes of parameters and buffers, by their names")

    @classmethod
    def of(cls, base: NamedArchitecture | UserNetwork, network: "torch.nn.Module") -> Self:
        """Write down in what a network differs from the one that `base` builds."""
        first = base.build()
        old = dict(first.named_modules())
        attributes = {
            path: {name: size for name, size in _sizes(module).items() if _sizes(old[path]).get(name) != size}
            for path, module in network.named_modules()
        }
        shapes = {name: tuple(tensor.shape) for name, tensor in first.state_dict().items()}
        tensors = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
        return cls(
            base=base,
            attributes={path: sizes for path, sizes in attributes.items() if sizes},
            tensors={name: shape for name, shape in tensors.items() if shapes[name] != shape},
        )

    def build(self) -> "torch.nn.Module":
        """Build the base and change its sizes; the values of a changed tensor are zeros."""
        import torch

        network = self.base.build()
        for path, sizes in self.attributes.items():
            for name, size in sizes.items():
                setattr(network.get_submodule(path), name, size)
        for full, shape in self.tensors.items():
            path, _, name = full.rpartition(".")
            module = network.get_submodule(path)
            old = getattr(module, name)
            new = torch.zeros(shape, dtype=old.dtype)
            setattr(module, name, torch.nn.Parameter(new) if isinstance(old, torch.nn.Parameter) else new)
        return network


def _sizes(module: "torch.nn.Module") -> dict[str, Any]:
    """Return a module's public whole numbers, and tuples of them."""

    def is_size(value: object) -> bool:
        return all(type(number) is int for number in (value if isinstance(value, tuple) else (value,)))  # no bool

    return {name: value for name, value in vars(module).items() if not name.startswith("_") and is_size(value)}


NetworkSpec = Annotated[NamedArchitecture | UserNetwork | ResizedNetwork, Field(discriminator="kind")]
