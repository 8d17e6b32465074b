"""Recipes as TOML files, each stating only what differs from the defaults of `training.config`."""
