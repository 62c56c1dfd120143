"""Is the share of wrong predictions above a bound? Bets on labels, after every one of them.

Where the expected loss of each sample, given the past, is at most the bound, no bet that losses exceed it gains: the
wealth is a test supermartingale (Waudby-Smith and Ramdas, Estimating means of bounded random variables by betting,
2020; for a risk that may change, arXiv 2506.16416).
"""

import numpy as np

from wings.lifecycle.library.monitoring.martingale import Floats, Wealth, wealth

STAKES = (0.01, 0.03, 0.1, 0.3, 0.6, 0.9)
"""Shares of the largest bet that cannot lose everything."""
STEPS = 20


def exceeds_wealth(losses: Floats, bound: float) -> Wealth:
    """Return the evidence after each loss, 0 to 1, that the risk has been above the bound, 0 < bound < 1."""
    stakes = np.array(STAKES)
    return wealth(lambda part: np.log1p(stakes * (losses[part][:, None] / bound - 1)), len(losses))


def within_wealth(losses: Floats, bound: float) -> Wealth:
    """Return the evidence after each loss that the risk has been below the bound, 0 < bound < 1."""
    return exceeds_wealth(1 - losses, 1 - bound)


def risk_lower_bound(losses: Floats, level: float) -> float:
    """Return a risk that the stream has exceeded at some time, at this level and however often it is computed.

    The lower end of the betting confidence sequence: the bounds that `exceeds_wealth` rejects are all below it. 0 where
    none is rejected.
    """
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        if exceeds_wealth(losses, middle).first_above(level) is None:
            high = middle
        else:
            low = middle
    return low if low > 1 / 2**STEPS else 0.0


def risk_upper_bound(losses: Floats, level: float) -> float:
    """Return a risk that the stream has been below at some time, at this level; 1 where there is none."""
    return 1 - risk_lower_bound(1 - losses, level)
