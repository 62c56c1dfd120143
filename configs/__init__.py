"""The configuration of a run: schema, loader, and presets (the YAML files in this folder)."""
