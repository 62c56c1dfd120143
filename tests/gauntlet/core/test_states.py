"""Which outputs of a streaming model come back as inputs."""

import numpy as np
import pytest

from gauntlet.core.states import sample_types, states_by_name, states_by_shape


def types(**widths: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    return sample_types({name.replace("__", "."): np.zeros((2, width), np.float32) for name, width in widths.items()})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["h"], ["h_out"]),
        (["h"], ["hn"]),
        (["h"], ["new_h"]),
        (["h0", "c0"], ["hn", "cn"]),
        (["state"], ["stateN"]),
        (["state_in"], ["state_out"]),
        (["inputState"], ["outputState"]),
        (["past_key_values__0__key", "past_key_values__1__key"], ["present__0__key", "present__1__key"]),
        (["r1i", "r2i"], ["r1o", "r2o"]),
        (["cache_1", "cache_2"], ["cache_1_out", "cache_2_out"]),
    ],
)
def test_state_is_recognized_by_its_name(before: list[str], after: list[str]) -> None:
    inputs, outputs = types(x=3, **dict.fromkeys(before, 4)), types(y=4, **dict.fromkeys(after, 4))
    expected = [tuple(name.replace("__", ".") for name in pair) for pair in zip(before, after, strict=True)]
    assert list(states_by_name(inputs, outputs)) == expected


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ({"x": 3, "h": 4}, {"y": 4, "h_out": 3}),  # another shape, and no cache that grows
        ({"input": 4, "gain": 1}, {"output": 4}),
        ({"sample": 4, "timestep": 1}, {"out_sample": 4}),  # a denoiser's only output is its prediction
        ({"state": 4}, {"state_out": 4, "y": 1}),  # no input is left for data
    ],
)
def test_names_alone_make_no_state(inputs: dict[str, int], outputs: dict[str, int]) -> None:
    assert states_by_name(types(**inputs), types(**outputs)) == ()


def test_state_is_recognized_as_the_only_pair_of_its_shape() -> None:
    outputs = types(y=2, z=4)
    for name in ("memory", "input_2", "arg1"):
        inputs = types(x=3, **{name: 4})
        assert states_by_shape(inputs, outputs, (), "y", [*inputs]) == ((name, "z"),)
        assert states_by_shape(inputs, outputs, (), "z", [*inputs]) == ()  # the prediction
        assert states_by_shape(inputs, outputs, (), "y", ["x"]) == ()  # of any length
        assert states_by_shape(types(x=4, **{name: 4}), outputs, (), "y", [*inputs]) == ()  # one of two
        assert states_by_shape(types(**{name: 4}), outputs, (), "y", [*inputs]) == ()  # no input is left for data
    assert states_by_shape(types(x=3, mask=4), outputs, (), "y", ["x", "mask"]) == ()  # its name says otherwise


def test_states_are_paired_in_their_order_where_the_outputs_have_numbers() -> None:
    inputs, fixed = types(x=3, h=4, c=4), ["x", "h", "c"]
    numbered, named = types(output_0=2, output_1=4, output_2=4), types(y=2, mean=4, deviation=4)
    assert sorted(states_by_shape(inputs, numbered, (), "output_0", fixed)) == [("c", "output_2"), ("h", "output_1")]
    assert states_by_shape(inputs, named, (), "y", fixed) == ()
