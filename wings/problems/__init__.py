"""Problems of fewer models: rankings, quantiles, and several outputs with labels of their own."""
