"""Changes of a cluster: what-ifs, switched-off parts, and where ranks are placed."""
