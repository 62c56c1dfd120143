"""The command `clean`: what frees the disk space of a home."""
