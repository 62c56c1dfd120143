"""What a server writes of its requests, in the format of `gauntlet.request_log`."""
