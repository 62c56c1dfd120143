"""Wings test with the fixtures of flows."""

from fake_runs import seam
from finished_runs import client, empty_store, finished, finished_home, folder, home, prefect_server, run

__all__ = ["client", "empty_store", "finished", "finished_home", "folder", "home", "prefect_server", "run", "seam"]
