"""Which models a folder has, and what came of them."""
