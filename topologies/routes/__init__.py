"""Ways over nodes and links: breadth-first for one pair, in columns for many."""
