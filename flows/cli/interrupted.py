"""What a command does first for runs that were killed: it closes their records."""

from flows.record.home import Home
from flows.record.journal import interrupted_runs
from flows.servers.local_servers import prefect_server


def close_interrupted_runs(home: Home) -> None:
    """Write the reports of killed runs, and tell Prefect and MLflow; takes seconds where there are any."""
    if interrupted_runs(home):
        with prefect_server(home):
            from flows.recording import close_interrupted  # Prefect reads the server's address when it is imported

            close_interrupted(home)
