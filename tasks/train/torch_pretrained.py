"""A PyTorch network that was trained elsewhere: the user's function makes it, and a file holds its weights."""

import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field, JsonValue

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature
from gauntlet.core.user_code import FunctionName, UserCode, source_files
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden, record_golden
from gauntlet.datasets.splits import Split
from gauntlet.frameworks.torch import network as source
from gauntlet.frameworks.torch.module_outputs import record_module_outputs
from gauntlet.frameworks.torch.network_spec import UserNetwork
from gauntlet.frameworks.torch.weights import put_weights, read_weights
from gauntlet.frameworks.training import measured, store_golden_and_predictions
from tasks.train.facts import TrainFacts, find_answer
from tasks.train.input_sizes import DESCRIPTION, InputSizes, outputs_of, resized_samples, with_dynamic_size

if TYPE_CHECKING:
    import torch


class TorchModel(Frozen):
    """Take a network as it is. It is called with the data's inputs, in their order and layout."""

    kind: Literal["torch-model"] = "torch-model"
    factory: FunctionName = Field(description="module:function, which returns a torch.nn.Module")
    code_folder: Path = Field(
        Path(), description="where the module's file is; what it imports from there travels with it"
    )
    arguments: dict[str, JsonValue] = Field(
        default_factory=dict, description="what the function is called with, by name"
    )
    weights: Path = Field(description="a state dict: .safetensors, or what torch.save(network.state_dict(), ...) wrote")
    weights_key: str | None = Field(None, description="where in a larger checkpoint the state dict is")
    outputs: tuple[str, ...] = Field((), description="names for what it returns, in its order; by default its own")
    primary_output: str | None = Field(
        None, description="the output that names the class; by default the first with scores"
    )
    input_sizes: InputSizes = Field((), description=DESCRIPTION)
    seed: int = Field(0, ge=0, description="of the random inputs")

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read; for a function of an installed package, what tells its version."""
        return (self.weights, *(source_files(self.code_folder, self.factory) or _package(self.factory)))

    def fit(self, splits: Mapping[str, Split], signature: Signature, workspace: Workspace) -> Report[TrainFacts]:
        """Take the network and ask it for its answers. See `tasks.train.train`.

        Raises:
            StageError: when it cannot be made, the weights do not fit it, or it does not fit the data.
        """
        import torch

        test, inputs = measured(splits), [spec.name for spec in signature.inputs]
        recipe = UserNetwork(code=UserCode.read(self.code_folder, self.factory), arguments=self.arguments)
        network = recipe.build().eval()
        put_weights(network, read_weights(self.weights, self.weights_key), self.weights)
        example = test.take(slice(0, source.EXAMPLES))
        names = self._names(network, [example[name] for name in inputs])

        def predict(asked: NamedArrays) -> NamedArrays:
            return self._called(network, names, {name: asked[name] for name in inputs})

        # Other values than those that occur may lie outside an embedding's table.
        sizes = resized_samples(test, self.input_sizes, signature)
        values_that_occur = any(array.dtype.kind != "f" for array in example.values())
        golden = record_golden(
            predict,
            test,
            seed=self.seed,
            sizes=sizes,
            trace=record_module_outputs(network, [example[name][:1] for name in inputs]),
            values_that_occur=values_that_occur,
        )
        signature = self._signed(signature, golden, example)
        facts = TrainFacts(
            framework=f"torch {torch.__version__}",
            architecture=self.factory,
            parameters=sum(p.numel() for p in network.parameters()),
            signature=signature,
        )
        artifacts = store_golden_and_predictions(golden, predict, {"test": test}, signature, workspace)
        path = workspace.folder / "model.pt"
        source.save_network(path, recipe, network, {name: example[name] for name in inputs})
        artifacts["model"] = workspace.store_file(path)
        return Report(stage="train", facts=facts, artifacts=artifacts)

    def _names(self, network: "torch.nn.Module", inputs: list[Array]) -> tuple[str, ...]:
        """Return the names of the outputs; a single one without a name is called `logits`."""
        import torch

        with torch.inference_mode():
            try:
                answer = network(*(source.tensor(array) for array in inputs))
            except Exception as error:  # whatever a layer says about an input that it cannot take
                shapes = [f"{array.dtype}{list(array.shape)}" for array in inputs]
                raise StageError(f"train.factory: {self.factory} fails on the data, {shapes}: {error}") from error
        own = tuple(source.named_outputs(answer))
        if not own:
            raise StageError(
                f"train.factory: {self.factory} answers with {type(answer).__name__}, in which is no tensor"
            )
        if self.outputs and len(self.outputs) != len(own):
            raise StageError(f"train.outputs names {len(self.outputs)} outputs; the network returns {len(own)}: {own}")
        return self.outputs or (("logits",) if own == ("output",) else own)

    def _called(self, network: "torch.nn.Module", names: tuple[str, ...], inputs: NamedArrays) -> NamedArrays:
        count = len(next(iter(inputs.values())))
        try:
            found = dict(zip(names, source.run_network(network, [*inputs.values()]), strict=True))
        except Exception as error:
            shapes = {name: list(array.shape) for name, array in inputs.items()}
            raise StageError(f"train.factory: {self.factory} fails on inputs of shape {shapes}: {error}") from error
        for name, array in found.items():
            if array.shape[:1] != (count,):
                raise StageError(
                    f"train.factory: {self.factory}: output '{name}' is {array.shape} for {count} samples, "
                    "not one entry a sample"
                )
        return found

    def _signed(self, signature: Signature, golden: Golden, example: NamedArrays) -> Signature:
        """Return the whole signature: types as the network takes them, axes by what differs from case to case."""
        inputs = tuple(
            spec.replace(dtype="float32") if example[spec.name].dtype.kind == "f" else spec for spec in signature.inputs
        )
        signature = signature.replace(inputs=inputs)
        signature = with_dynamic_size(signature) if self.input_sizes else signature
        answer = find_answer(self.primary_output, golden.test_outputs, signature.labels)
        return signature.replace(outputs=outputs_of(golden), primary_output=answer)


def _package(factory: str) -> tuple[Path, ...]:
    """Return the file that holds the version of the installed package in which a function is."""
    root = factory.partition(":")[0].partition(".")[0]
    for name in importlib.metadata.packages_distributions().get(root, []):
        for file in importlib.metadata.files(name) or []:
            if file.name == "METADATA":
                return (Path(str(file.locate())),)
    return ()
