"""What a run is asked to do: the schema, the loader, and the presets (the YAML files in this folder)."""
