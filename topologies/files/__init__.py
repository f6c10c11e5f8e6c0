"""Clusters in and out of files."""
