"""Wings test with the fixtures of flows."""

from fake_runs import seam
from finished_runs import client, finished, finished_home, folder, home, prefect_server, run

__all__ = ["client", "finished", "finished_home", "folder", "home", "prefect_server", "run", "seam"]
