"""Tokens of texts: as Python finds them, by patterns of RE2."""

import re
from typing import Any

import numpy as np
import onnx

ASCII_WORD, LETTERS = "[a-zA-Z0-9_]+", r"\p{L}\p{N}_"
WHOLE_WORD = re.compile(r"(?:\(\?u\))?\\b((?:\\w)+(?:\+|\{\d+,\}))\\b")
RUN = r"[\t-\r\x1c-\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]{2,}"
"""Spaces that scikit-learn takes for one where it analyzes characters, which skl2onnx leaves as they are."""


def read_all_scripts(graph: onnx.GraphProto, estimator: Any) -> None:
    r"""Let tokenizers take the letters of every script for words, in place, as Python's `\w` does; RE2's is ASCII."""
    own = [value for name, value in estimator.get_params().items() if name.endswith("token_pattern")]
    characters = "char" in (value for name, value in estimator.get_params().items() if name.endswith("analyzer"))
    for node in [node for node in graph.node if node.op_type == "Tokenizer"]:
        [attribute] = [a for a in node.attribute if a.name == "tokenexp"]
        pattern = attribute.s.decode()
        if characters and pattern == ".":
            attribute.s = f"{RUN}|(?s:.)".encode()
            _shorten_runs(graph, next(reader for reader in graph.node if node.output[0] in reader.input))
            continue
        pattern = r"\w\w+" if pattern == ASCII_WORD and pattern not in own else pattern  # skl2onnx's default
        if whole := WHOLE_WORD.fullmatch(pattern):  # of which the longest match ends at its bounds
            pattern = whole[1]
        parts = re.split(r"(\[[^]]*\])", pattern.removeprefix("(?u)"))
        words = [part.replace(r"\w", LETTERS if part[:1] == "[" else f"[{LETTERS}]") for part in parts]
        attribute.s = "".join(words).encode()


def _shorten_runs(graph: onnx.GraphProto, flatten: onnx.NodeProto) -> None:
    """Make a space of each token, shape (n, tokens), that is a run of spaces: of several characters, in place."""
    [output], own = flatten.output, f"{flatten.output[0]}__runs"
    flatten.output[0] = own
    constants = {"space": np.array([" "], object), "axis": np.array([-1]), "one": np.array(1)}
    graph.initializer.extend(onnx.numpy_helper.from_array(a, f"{own}_{name}") for name, a in constants.items())
    # Without a type, onnx's checker ends the process.
    graph.value_info.append(onnx.helper.make_tensor_value_info(f"{own}_Tokenizer", onnx.TensorProto.STRING, None))
    split = {"tokenexp": "(?s:.)", "pad_value": "", "mark": 0, "mincharnum": 1, "domain": "com.microsoft"}
    count = {"cats_strings": [""], "cats_int64s": [0], "default_int64": 1, "domain": "ai.onnx.ml"}
    steps: tuple[tuple[str, list[str], dict[str, Any]], ...] = (
        ("Tokenizer", [own], split),
        ("CategoryMapper", [f"{own}_Tokenizer"], count),
        ("ReduceSum", [f"{own}_CategoryMapper", f"{own}_axis"], {"keepdims": 0}),
        ("Greater", [f"{own}_ReduceSum", f"{own}_one"], {}),
        ("Where", [f"{own}_Greater", f"{own}_space", own], {}),
    )
    place = [*graph.node].index(flatten) + 1
    for kind, inputs, how in reversed(steps):
        node = onnx.helper.make_node(kind, inputs, [output if kind == "Where" else f"{own}_{kind}"], **how)
        graph.node.insert(place, node)
