"""The addresses of the server, one file for each group of the protocol."""
