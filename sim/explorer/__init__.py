"""The what-if explorer: a page on this machine whose controls change a scenario, and the server that predicts."""
