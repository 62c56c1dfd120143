"""A PyTorch network that was trained elsewhere: the user's function makes it, and a file holds its weights."""

import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field, JsonValue

from tasks.data.dataset import Arrays, Split
from tasks.data.golden import Golden, ask
from tasks.errors import StageError
from tasks.frozen import Frozen
from tasks.report import Report
from tasks.signature import Signature
from tasks.sources import torch as source
from tasks.sources.learning import keep_answers
from tasks.sources.torch.code import Code, FunctionName, files_of
from tasks.sources.torch.factory import Made
from tasks.sources.torch.trace import trace
from tasks.sources.torch.weights import put_weights, read_weights
from tasks.statistics import classes
from tasks.train.facts import TrainFacts
from tasks.train.sizes import DESCRIPTION, Sizes, at_other_sizes, outputs_of, with_dynamic_size
from tasks.workspace import Workspace

if TYPE_CHECKING:
    import torch


class TorchModel(Frozen):
    """Take a network as it is. It is called with the data's inputs, in their order and layout."""

    kind: Literal["torch-model"] = "torch-model"
    factory: FunctionName = Field(description="module:function, which returns a torch.nn.Module")
    folder: Path = Field(Path(), description="where the module's file is; what it imports from there travels with it")
    arguments: dict[str, JsonValue] = Field(
        default_factory=dict, description="what the function is called with, by name"
    )
    weights: Path = Field(description="a state dict: .safetensors, or what torch.save(network.state_dict(), ...) wrote")
    weights_key: str | None = Field(None, description="where in a larger checkpoint the state dict is")
    outputs: tuple[str, ...] = Field((), description="names for what it returns, in its order; by default its own")
    answer: str | None = Field(None, description="the output that names the class; by default the first with scores")
    sizes: Sizes = Field((), description=DESCRIPTION)
    seed: int = Field(0, ge=0, description="of the random inputs")

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read; for a function of an installed package, what tells its version."""
        return (self.weights, *(files_of(self.folder, self.factory) or _package(self.factory)))

    def fit(self, splits: Mapping[str, Split], signature: Signature, out: Workspace) -> Report[TrainFacts]:
        """Take the network and ask it for its answers. See `tasks.train.train`.

        Raises:
            StageError: when it cannot be made, the weights do not fit it, or it does not fit the data.
        """
        import torch

        if "test" not in splits:
            raise StageError(f"the model is measured on the split 'test'; the data has {sorted(splits)}")
        test, inputs = splits["test"], [spec.name for spec in signature.inputs]
        recipe = Made(code=Code.read(self.folder, self.factory), arguments=self.arguments)
        network = recipe.build().eval()
        put_weights(network, read_weights(self.weights, self.weights_key), self.weights)
        example = test.take(slice(0, source.EXAMPLES))
        names = self._names(network, [example[name] for name in inputs])

        def predict(asked: Arrays) -> Arrays:
            return self._called(network, names, {name: asked[name] for name in inputs})

        # Other values than those that occur may lie outside an embedding's table.
        sizes = at_other_sizes(test, self.sizes, signature)
        values_that_occur = any(array.dtype.kind != "f" for array in example.values())
        golden = ask(
            predict,
            test,
            seed=self.seed,
            sizes=sizes,
            trace=trace(network, [example[name][:1] for name in inputs]),
            values_that_occur=values_that_occur,
        )
        signature = self._signed(signature, golden, example)
        facts = TrainFacts(
            framework=f"torch {torch.__version__}",
            architecture=self.factory,
            parameters=sum(p.numel() for p in network.parameters()),
            best_epoch=0,
            stopped_early=False,
            history=(),
            signature=signature,
        )
        artifacts = keep_answers(golden, predict, {"test": test}, signature, out)
        path = out.folder / "model.pt"
        source.save(path, recipe, network, {name: example[name] for name in inputs})
        artifacts["model"] = out.keep(path)
        return Report(stage="train", facts=facts, artifacts=artifacts)

    def _names(self, network: "torch.nn.Module", inputs: list[source.Array]) -> tuple[str, ...]:
        """Return the names of the outputs; a single one without a name is called `logits`."""
        import torch

        with torch.inference_mode():
            try:
                answer = network(*(source.tensor(array) for array in inputs))
            except Exception as error:  # whatever a layer says about an input that it cannot take
                shapes = [f"{array.dtype}{list(array.shape)}" for array in inputs]
                raise StageError(f"train.factory: {self.factory} fails on the data, {shapes}: {error}") from error
        own = tuple(source.outputs_of(answer))
        if not own:
            raise StageError(
                f"train.factory: {self.factory} answers with {type(answer).__name__}, in which is no tensor"
            )
        if self.outputs and len(self.outputs) != len(own):
            raise StageError(f"train.outputs names {len(self.outputs)} outputs; the network returns {len(own)}: {own}")
        return self.outputs or (("logits",) if own == ("output",) else own)

    def _called(self, network: "torch.nn.Module", names: tuple[str, ...], inputs: Arrays) -> Arrays:
        count = len(next(iter(inputs.values())))
        try:
            found = dict(zip(names, source.run(network, [*inputs.values()]), strict=True))
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

    def _signed(self, signature: Signature, golden: Golden, example: Arrays) -> Signature:
        """Return the whole signature: types as the network takes them, axes by what differs from case to case."""
        inputs = tuple(
            spec.replace(dtype="float32") if example[spec.name].dtype.kind == "f" else spec for spec in signature.inputs
        )
        signature = signature.replace(inputs=inputs)
        signature = with_dynamic_size(signature) if self.sizes else signature
        outputs = outputs_of(golden)
        if self.answer is not None and self.answer not in golden.answers:
            raise StageError(
                f"train.answer: the network has no output {self.answer!r}; it has {sorted(golden.answers)}"
            )
        named = [name for name, array in golden.answers.items() if classes(array, signature.labels) is not None]
        fitting = [name for name in named if golden.answers[name].shape[1:] == (len(signature.labels),)]
        answer = self.answer or next(iter(fitting + named), None)
        return signature.replace(outputs=outputs, answer=answer)


def _package(factory: str) -> tuple[Path, ...]:
    """Return the file that holds the version of the installed package in which a function is."""
    root = factory.partition(":")[0].partition(".")[0]
    for name in importlib.metadata.packages_distributions().get(root, []):
        for file in importlib.metadata.files(name) or []:
            if file.name == "METADATA":
                return (Path(str(file.locate())),)
    return ()
