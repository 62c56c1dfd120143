"""Documents of a bundle for others: the model card, the bill of materials, and what MLflow needs to score it."""

import json
from collections.abc import Mapping

from gauntlet.bundle.contract import Contract
from gauntlet.bundle.write import CardConfig
from gauntlet.core.run_report import RunReport
from wings.documents.bill_of_materials import bill_of_materials
from wings.documents.mlflow_flavor import MLMODEL, mlmodel_text
from wings.documents.model_card import model_card


def documents(
    contract: Contract, report: RunReport, card: CardConfig, files: Mapping[str, str], size_bytes: int
) -> dict[str, str]:
    """Return their texts by file name; `files` are the model's, SHA-256 by name, with their size."""
    bom = json.dumps(bill_of_materials(contract, report, dict(files)), indent=1) + "\n"
    return {
        "README.md": model_card(contract, report, card),
        "bom.json": bom,
        MLMODEL: mlmodel_text(contract, report.started_at, size_bytes),
    }
