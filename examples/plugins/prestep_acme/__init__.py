"""Acme's additions to prestep; pyproject.toml says which module is what."""
