"""A cluster for people: tables, numbers and pictures."""
