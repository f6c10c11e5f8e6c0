"""Runs a program without a GPU and writes down what it asks of one. Needs PyTorch (`prestep[capture]`)."""
