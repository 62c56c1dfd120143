"""Watch a shipped model: its request log, and tests of its inputs, outputs and labels that hold at every look."""
