"""Exchanges of ranks inside a layer, for every framework."""
