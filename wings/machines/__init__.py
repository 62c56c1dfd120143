"""Other machines: races in work pools, a cluster's workers, a store that machines share. See docs/wings/machines.md."""
