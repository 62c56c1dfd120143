"""A pretrained PyTorch network: a user's function builds it, and a file holds its weights."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, JsonValue

from frameworks.arguments import Arguments
from frameworks.input_sizes import InputSizes, outputs_of, resized_samples, with_dynamic_size
from frameworks.session import distinct_outputs
from frameworks.torch import network as torch_network
from frameworks.torch.fine_tune import FineTune, Tuned, fine_tune
from frameworks.torch.module_outputs import record_module_outputs
from frameworks.torch.network_spec import UserNetwork
from frameworks.torch.training_loop import TorchLoopConfig
from frameworks.torch.weights import put_weights, read_weights, require_float32, without_other_head
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature
from gauntlet.core.user_code import FunctionName, UserCode, code_files
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden, Predict, record_golden
from gauntlet.datasets.splits import Splits
from gauntlet.frameworks.training import require_test_split, splits_to_score
from tasks.train.base import Training
from tasks.train.facts import InitialWeights, TrainFacts, report_model
from tasks.train.states import StatePairs, with_primary_and_states

if TYPE_CHECKING:
    import torch


class TorchModel(Training):
    """Load a network. Its arguments are the data's arrays of the same names, in the data's layout."""

    everyday: ClassVar = {"factory": "networks:build", "weights": "weights.safetensors"}
    kind: Literal["torch-model"] = "torch-model"
    packages: ClassVar[dict[str, str]] = {"torch": "torch", "torchvision": "torch"}
    prunable: ClassVar[bool] = True
    factory: FunctionName = Field(description="module:function, which returns a torch.nn.Module")
    code_folder: Path = Field(Path(), description="contains the module; what it imports from there is stored with it")
    arguments: dict[str, JsonValue] = Field(default_factory=dict, description="keyword arguments of the function")
    weights: Path = Field(description="a state dict: .safetensors, or what torch.save(network.state_dict(), ...) wrote")
    weights_key: str | None = Field(None, description="key of the state dict in a larger checkpoint")
    outputs: tuple[str, ...] = Field((), description="names of the outputs, in their order; by default the network's")
    primary_output: str | None = Field(None, description="output that names the class; default: the first with scores")
    fine_tune: FineTune | None = Field(None, description="train the network further; default: leave it as it is")
    input_sizes: InputSizes = ()
    states: StatePairs = None

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read; for a function of an installed package, the file with its version."""
        return (self.weights, *code_files(self.code_folder, self.factory))

    @property
    def learns(self) -> bool:
        """Whether the network is fine-tuned."""
        return self.fine_tune is not None

    @property
    def hyperparameters(self) -> TorchLoopConfig | None:
        """Those of fine-tuning."""
        return self.fine_tune.loop() if self.fine_tune else None

    def fit(self, splits: Splits, signature: Signature, workspace: Workspace) -> Report[TrainFacts]:
        """Load the network, fine-tune it if asked to, and record its golden outputs. See `tasks.train.train`."""
        import torch

        test = require_test_split(splits)
        spec = UserNetwork(code=UserCode.read(self.code_folder, self.factory), arguments=self.arguments)
        network, replaced = self._network(spec)
        signature = self._in_call_order(network, signature)
        samples = test.take(slice(0, torch_network.EXAMPLES))
        example = {each.name: samples[each.name] for each in signature.inputs}
        names = self._output_names(network, example)

        def predict(inputs: NamedArrays) -> NamedArrays:
            return self._run(network, names, {name: inputs[name] for name in example})

        tuned = self._tuned(network, replaced, predict, splits, signature, workspace)
        facts = TrainFacts(
            framework=f"torch {torch.__version__}",
            architecture=self.factory,
            parameters=sum(p.numel() for p in network.parameters()),
            signature=signature,
            **tuned.facts,
        )
        if not tuned.usable:
            return Report(facts=facts, checks=tuned.checks)
        golden = record_golden(
            predict,
            test,
            sizes=resized_samples(test, self.input_sizes, signature),
            module_outputs=record_module_outputs(network, [array[:1] for array in example.values()]),
            # Other integers may lie outside an embedding's table.
            observed_values_only=any(array.dtype.kind != "f" for array in samples.values()),
        )
        facts = facts.replace(signature=self._complete(signature, golden, example))
        path = workspace.folder / "model.pt"
        torch_network.save_network(path, spec, network, example)
        return report_model(facts, golden, predict, tuned.data, workspace, path, checks=tuned.checks)

    def _network(self, spec: UserNetwork) -> tuple["torch.nn.Module", tuple[str, ...]]:
        """Return the network with its weights, and the names of the tensors of a replaced head.

        A head is replaced only where it will be trained; otherwise its weights do not fit.
        """
        import torch

        if self.fine_tune:
            torch.manual_seed(self.fine_tune.seed)
        network, replaced = spec.build().eval(), tuple[str, ...]()
        weights = read_weights(self.weights, self.weights_key)
        if self.fine_tune:
            weights, replaced = without_other_head(network, weights)
        put_weights(network, weights, self.weights)
        require_float32(network, self.factory)
        return network, replaced

    def _in_call_order(self, network: "torch.nn.Module", signature: Signature) -> Signature:
        """Return the signature with its inputs in the order of the network's arguments; they are matched by name."""
        try:
            return Arguments.of(network.forward).ordered(signature)
        except StageError as error:
            raise StageError(f"train.factory: {self.factory}: {error}") from error

    def _tuned(
        self,
        network: "torch.nn.Module",
        replaced: tuple[str, ...],
        predict: Predict,
        splits: Splits,
        signature: Signature,
        workspace: Workspace,
    ) -> Tuned:
        """Fine-tune the network if asked to; return also the splits that it is scored on."""
        if self.fine_tune is None:
            return Tuned(splits_to_score(splits), (), {})
        tuned = fine_tune(
            self.fine_tune, network, predict, splits, signature, self.primary_output, workspace, new_head=bool(replaced)
        )
        trained = sum(p.numel() for p in network.parameters() if p.requires_grad)
        started = InitialWeights(source=self.weights.name, replaced=replaced, trained_parameters=trained)
        return replace(tuned, facts=tuned.facts | {"initial_weights": started})

    def _output_names(self, network: "torch.nn.Module", example: NamedArrays) -> tuple[str, ...]:
        """Return the names of the outputs; a single unnamed one is called `logits`."""
        import torch

        inputs = [*example.values()]
        with torch.inference_mode():
            try:
                result = network(*(torch_network.tensor(array) for array in inputs))
            except Exception as error:  # any layer may fail in its own way
                shapes = [f"{array.dtype}{list(array.shape)}" for array in inputs]
                raise StageError(f"train.factory: {self.factory} fails on the data, {shapes}: {error}") from error
        tensors = torch_network.named_outputs(result)
        own = tuple(distinct_outputs(tensors, example))
        faults = [
            f"{name!r}, one number for all samples. Fix: leave it out" for name, t in tensors.items() if t.ndim == 0
        ]
        if isinstance(result, Mapping):
            faults += [f"the key {key!r}. Fix: make it a text" for key in result if not isinstance(key, str)]
        if faults:
            raise StageError(f"train.factory: {self.factory} returns {faults[0]}")
        if not own:
            raise StageError(f"train.factory: {self.factory} returns {type(result).__name__} without a tensor in it")
        if self.outputs and len(self.outputs) != len(own):
            raise StageError(f"train.outputs names {len(self.outputs)} outputs; the network returns {len(own)}: {own}")
        return self.outputs or (("logits",) if own == ("output",) else own)

    def _run(self, network: "torch.nn.Module", names: tuple[str, ...], inputs: NamedArrays) -> NamedArrays:
        count = len(next(iter(inputs.values())))
        try:
            outputs = dict(zip(names, torch_network.run_network(network, [*inputs.values()]), strict=True))
        except Exception as error:
            shapes = {name: list(array.shape) for name, array in inputs.items()}
            raise StageError(f"train.factory: {self.factory} fails on inputs of shape {shapes}: {error}") from error
        for name, array in outputs.items():
            if array.shape[:1] != (count,):
                raise StageError(
                    f"train.factory: {self.factory}: output '{name}' is {array.shape} for {count} samples; "
                    "expected one row per sample. Fix: return it with the samples as its first axis, or leave it out"
                )
        return outputs

    def _complete(self, signature: Signature, golden: Golden, example: NamedArrays) -> Signature:
        """Return the complete signature: types as the network takes them, axes that differ between cases dynamic."""
        floats = {name for name, array in example.items() if array.dtype.kind == "f"}
        inputs = tuple(spec.replace(dtype="float32") if spec.name in floats else spec for spec in signature.inputs)
        signature = signature.replace(inputs=inputs)
        signature = with_dynamic_size(signature) if self.input_sizes else signature
        return with_primary_and_states(signature.replace(outputs=outputs_of(golden)), golden, self)
