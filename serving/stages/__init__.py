"""The stages `loadgen` and `serve`, which measure the winner and the service of its bundle."""
