"""What a cluster is made of: nodes, directed links, and numbers with evidence."""
