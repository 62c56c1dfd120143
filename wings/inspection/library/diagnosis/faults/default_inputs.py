"""Weights that are inputs with a default value, which runtimes therefore do not take for constants."""

from gauntlet.onnx_model.normalization.constants import default_inputs, drop_default_inputs
from wings.inspection.library.diagnosis.context import ModelContext
from wings.inspection.library.diagnosis.findings import Finding


def find(context: ModelContext) -> Finding | None:
    """Check for initializers among the inputs."""
    infos = default_inputs(context.graph, _declared(context))
    if not infos:
        return None
    cause = f"{len(infos)} initializers are also inputs, such as '{infos[0].name}': a caller may replace them, so the "
    cause += "runtime neither folds nor packs them"
    fix = "export with keep_initializers_as_inputs=False, or remove them from the inputs with --fix"
    return Finding(fault="default_inputs", cause=cause, fix=fix, fixable=True, severity="warning")


def fix(context: ModelContext) -> str:
    """Remove them from the inputs, in place; return what was done."""
    return drop_default_inputs(context.proto, _declared(context))


def _declared(context: ModelContext) -> set[str]:
    return {spec.name for spec in context.signature.inputs} if context.signature else set()
