"""What `action.yml` runs: a pull request's model against that of the base branch."""
