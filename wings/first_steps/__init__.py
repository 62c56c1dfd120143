"""The first steps: a preset for a model of one's own, and completion in the shell."""
