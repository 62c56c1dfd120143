"""Why candidates are not faster: the stage `explain`, behind the race."""
