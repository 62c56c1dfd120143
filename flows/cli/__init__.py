"""The command line: `main` parses with `options` and calls the module of the command."""
