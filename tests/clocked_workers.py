"""Workers whose calls take a known time."""

CLOCK = """
import sys
import numpy as np
from gauntlet.runtime.engines.ort import OrtEngine
from gauntlet.runtime.worker import serve

measure, random, warm = OrtEngine.measure, np.random.default_rng(), False
more_ms = float(sys.argv[2]) if sys.argv[2:] else 0

def timed(self, feed, at_least_ms=0, calls=None, clock="wall"):
    global warm, more_ms
    took_ms = float(sys.argv[1])
    durations = took_ms * np.exp(0.005 * random.standard_normal(calls or max(1, round(at_least_ms / took_ms))))
    if not warm:
        durations[0] = 1.3 * durations[0] + more_ms
        more_ms = 0
    warm = calls is None  # once it has run, another process is next
    return durations.tolist(), measure(self, feed)[1]

OrtEngine.measure = timed
serve(sys.stdin, sys.stdout)
"""
"""A worker whose calls take the given time, and 30 % more after another process has run; they vary by 0.5 %.

The first of a process takes as much more as a second argument says.
"""
