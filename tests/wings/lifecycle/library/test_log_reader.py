"""Files of the request log are read as they were written, and a damaged one is named."""

from pathlib import Path

import numpy as np
import pytest

from gauntlet.core.errors import StageError
from gauntlet.request_log.log_format import pack, unpack
from wings.lifecycle.library.log_reader import RequestLogReader

VERSION = "a" * 12


def test_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "requests-000001.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(StageError, match=r"requests-000001.sqlite: it cannot be read: .*Fix: remove this file"):
        list(RequestLogReader(tmp_path).requests(VERSION))


def test_arrays_of_every_type_come_back() -> None:
    arrays = {
        "floats": np.arange(6, dtype=np.float32).reshape(2, 3),
        "scalar": np.array(7, np.int64),
        "texts": np.array(["a", "näh"], object),
        "none": np.zeros((0, 4), np.float16),
        "flags": np.array([[True], [False]]),
    }
    found = unpack(pack(arrays))
    assert [*found] == [*arrays]
    for name, array in arrays.items():
        assert np.array_equal(found[name], array)
        assert found[name].shape == array.shape
