"""The candidate that takes images has a name in the configuration."""

import pytest
from pydantic import ValidationError

from configs.schema import PipelineConfig


def test_name_of_the_candidate_from_images_is_taken() -> None:
    chain = {"kind": "chain", "name": "static-u8s8-uint8"}
    values = {"optimize": [chain], "quantize": [{"kind": "static"}]}
    assert not PipelineConfig.model_validate(values).preprocess_in_graph  # type: ignore[attr-defined]
    with pytest.raises(ValidationError, match="two candidates named 'static-u8s8-uint8'"):
        PipelineConfig.model_validate(values | {"preprocess_in_graph": True})
