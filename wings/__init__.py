"""What can be removed: each folder is one subject, which the core finds by entry points (`gauntlet.core.kinds`)."""
