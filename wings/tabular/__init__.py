"""Problems of tables: an order within groups, and quantiles of a number."""
