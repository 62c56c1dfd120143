"""If nodes whose condition never changes: nothing in their branches is quantized."""

from gauntlet.onnx_model.normalization.branches import fold_branches, if_nodes
from wings.inspection.library.diagnosis.context import ModelContext
from wings.inspection.library.diagnosis.faults.trial import would_change
from wings.inspection.library.diagnosis.findings import Finding


def find(context: ModelContext) -> Finding | None:
    """Check for If nodes with a constant condition."""
    if not if_nodes(context.proto) or not (change := would_change(context, fold_branches)):
        return None
    cause = f"a condition never changes ({change.removeprefix('folded ')}): quantizers do not look into branches"
    fix = "replace the If nodes by the branch that is taken, with --fix"
    return Finding(fault="constant_branch", cause=cause, fix=fix, fixable=True, severity="warning")
