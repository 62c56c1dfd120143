"""`gauntlet verify`: a bundle is proven again, without a server or a network."""
