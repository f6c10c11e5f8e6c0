"""Rounds of microbatches that repeat are executed a few times and put in as often as they come."""
