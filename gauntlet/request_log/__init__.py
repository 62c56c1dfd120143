"""The log of a server's requests: its format and reader, and what requests are compared with."""
