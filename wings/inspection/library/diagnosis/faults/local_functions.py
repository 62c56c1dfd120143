"""Functions of the model's own, which quantizers do not look into."""

from wings.inspection.library.diagnosis.context import ModelContext
from wings.inspection.library.diagnosis.findings import Finding


def find(context: ModelContext) -> Finding | None:
    """Check for model-local functions."""
    functions = context.proto.functions
    if not functions:
        return None
    cause = f"the model has {len(functions)} functions of its own, such as '{functions[0].name}': quantizers and graph "
    cause += "passes do not look into them"
    fix = "replace the calls by nodes with --fix"
    return Finding(fault="local_functions", cause=cause, fix=fix, fixable=True, severity="warning")
