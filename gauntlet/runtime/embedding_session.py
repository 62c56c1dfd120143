"""A session whose outputs also have the model's embedding, proven to leave the others as they are."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.onnx_model.embedding_output import EMBEDDING, EmbeddingOutput, NoEmbedding, with_embedding
from gauntlet.onnx_model.model_file import read_graph
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session

WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"


def open_embedding_session(
    model: Path,
    output: EmbeddingOutput,
    plain: Any,
    samples: NamedArrays,
    batches: Iterable[int],
    *,
    threads: int | None = None,
    overrides: Mapping[str, str | int | bool] | None = None,
) -> Any:
    """Return a session with the output `EMBEDDING` besides those of `plain`, which has the same settings.

    Raises:
        NoEmbedding: when the runtime refuses it, an output differs in a single bit from that of `plain` on the
            samples, or the embedding does not have one row per sample.
    """
    try:
        session = open_session(
            with_embedding(read_graph(model), output).SerializeToString(),
            threads=threads,
            settings={WEIGHTS_FOLDER: str(model.resolve().parent)},
            overrides=overrides,
        )
        for batch in sorted(set(batches)):
            expected = batched_inference(plain, samples).run(batch)
            _require_same(batched_inference(session, samples).run(batch), expected, output, batch)
    except NoEmbedding:
        raise
    except StageError as error:
        raise NoEmbedding(f"what {output.layer} takes cannot be an output: {error}") from error
    return session


def _require_same(actual: NamedArrays, expected: NamedArrays, output: EmbeddingOutput, batch: int) -> None:
    embedding = actual.pop(EMBEDDING)
    rows = len(next(iter(expected.values())))
    if embedding.shape != (rows, output.values):
        raise NoEmbedding(f"what {output.layer} takes does not have one entry per sample")
    for name, array in expected.items():
        if any(part(actual[name]) != part(array) for part in (np.shape, np.result_type, np.ndarray.tobytes)):
            raise NoEmbedding(f"with what {output.layer} takes as an output, '{name}' changes at batch {batch}")
