"""A network of which only a part is left: its layers are the old ones with other sizes, and those are written down."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field

from tasks.frozen import Frozen
from tasks.sources.torch.architectures import Known
from tasks.sources.torch.factory import Made

if TYPE_CHECKING:
    import torch

Size = int | tuple[int, ...]


class Resized(Frozen):
    """How to build a network, and then to give some of its layers other sizes.

    It needs nothing of whatever chose the sizes: the exporter builds the network without it.
    """

    kind: Literal["resized"] = "resized"
    base: Annotated[Known | Made, Field(discriminator="kind")]
    attributes: dict[str, dict[str, Size]] = Field(description="by the module's path: in_channels, num_features, ...")
    tensors: dict[str, tuple[int, ...]] = Field(description="shapes of parameters and buffers, by their names")

    @classmethod
    def of(cls, base: Known | Made, network: "torch.nn.Module") -> Self:
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
