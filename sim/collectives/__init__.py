"""Collectives of NCCL as activities on a fabric: what is chosen, which links carry it, how long it takes."""
