"""Commands as tools of agents: `prestep mcp`."""
