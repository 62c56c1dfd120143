"""Pruning: a network of fewer weights, which learns again what the cut cost, and then walks the line by itself."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from tasks.artifact import Artifact
from tasks.data.dataset import Arrays, Split
from tasks.data.golden import Case, Golden, answers, head
from tasks.data.read import read_split
from tasks.errors import StageError
from tasks.frozen import Frozen
from tasks.prune.size import NetworkSize, compressed_bytes, widths
from tasks.prune.structured import Structured
from tasks.prune.unstructured import Unstructured
from tasks.report import Report
from tasks.signature import Signature
from tasks.sources import torch as source
from tasks.sources.learning import Epoch, keep_answers, labelled
from tasks.sources.torch.loop import Loop
from tasks.sources.torch.resized import Resized
from tasks.sources.torch.trace import trace
from tasks.workspace import Workspace

if TYPE_CHECKING:
    import torch

PruneConfig = Annotated[Structured | Unstructured, Field(discriminator="kind")]


class PruneFacts(Frozen):
    """What was cut, and how the network learned again."""

    before: NetworkSize
    after: NetworkSize
    macs_share: float = Field(description="multiply-accumulate operations left, of those before")
    widths: dict[str, tuple[int, int]] = Field(description="output channels before and after, of the layers that lost")
    gzip_bytes: int = Field(description="all tensors of the pruned network, one after the other, compressed by DEFLATE")
    best_epoch: int = Field(description="of fine-tuning, by the loss on the validation images; 0 for none")
    stopped_early: bool
    history: tuple[Epoch, ...]


def prune(
    config: PruneConfig,
    out: Workspace,
    *,
    network: Artifact,
    signature: Signature,
    golden: Artifact,
    splits: Mapping[str, Artifact],
) -> Report[PruneFacts]:
    """Cut a PyTorch network and fine-tune what is left. The test images are asked at the end, and decide nothing.

    Args:
        config: what to cut, and how to learn again.
        out: where to write.
        network: the trained network's file.
        signature: its contract; the pruned network keeps it.
        golden: its answers. The pruned network is asked the same.
        splits: the data; `train`, `validation` and `test`, with labels, are used.

    Returns:
        The artifacts `network` (a file like the one that came in), `golden` and `predictions`. There are none where the
        network cannot be cut that far.

    Raises:
        StageError: when there are no labels to learn from, or the network cannot be cut without breaking it.
    """
    data = labelled(
        {name: read_split(out.path(artifact)) for name, artifact in splits.items()}, "train", "validation", "test"
    )
    whole, example = source.load(out.path(network))
    names, inputs = [spec.name for spec in signature.outputs], [*example.values()]
    if signature.answer not in names:
        raise StageError("pruning needs an output that names the class, to learn again; name one with train.answer")
    before = NetworkSize.of(whole, inputs)
    with config.cut(whole, inputs) as cut:
        loop = Loop(config, cut, data, signature, out)
        possible = not any(check.blocks for check in config.checks(before, NetworkSize.of(cut, inputs)))
        learned = (loop.run("prune"),) if possible else ()
    after = NetworkSize.of(cut, inputs)
    facts = PruneFacts(
        before=before,
        after=after,
        macs_share=after.macs / before.macs,
        widths=widths(whole, cut),
        gzip_bytes=compressed_bytes(cut),
        best_epoch=loop.best_epoch,
        stopped_early=loop.stopped_early,
        history=tuple(loop.history),
    )
    report: Report[PruneFacts] = Report(stage="prune", facts=facts, checks=(*config.checks(before, after), *learned))
    if report.failures:
        return report
    artifacts = _kept(cut, Golden.load(out.path(golden)), data, signature, out)
    path = out.folder / "network.pt"
    recipe = source.recipe_of(out.path(network))
    if facts.widths and not isinstance(recipe, Resized):
        recipe = Resized.of(recipe, cut)
    source.save(path, recipe, cut, {name: tensor.numpy() for name, tensor in example.items()})
    return report.replace(artifacts={"network": out.keep(path), **artifacts})


def _kept(
    network: "torch.nn.Module", golden: Golden, data: Mapping[str, Split], signature: Signature, out: Workspace
) -> dict[str, Artifact]:
    """Ask the network what the whole one was asked, and save its answers."""

    def predict(inputs: Arrays) -> Arrays:
        found = source.run(network, source.in_order(inputs, signature))
        return {spec.name: array for spec, array in zip(signature.outputs, found, strict=True)}

    first = source.in_order(head(golden.real.inputs, 1), signature)
    own = Golden(
        cases={title: Case(case.inputs, predict(case.inputs)) for title, case in golden.cases.items()},
        answers=answers(predict, data["test"]),
        labels=golden.labels,
        trace=trace(network, first),
    )
    return keep_answers(own, predict, data, signature, out)
