"""Exchanges of experts' tokens by library, asked by themselves (`prestep collective --op dispatch`)."""
