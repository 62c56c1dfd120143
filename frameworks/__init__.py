"""Frameworks that train, export and run models: each folder holds all that names one, and can be removed."""
