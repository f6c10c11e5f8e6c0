"""Clusters that other tools describe, an extension: a module per format, named in `entry_points.txt`."""
