"""Tests that ask for the laboratory's sets: environments at the lower ends of the libraries do not have them."""

from __future__ import annotations

import pytest

from prestep.validation.sets.sets import set_names

needs_sets = pytest.mark.skipif(
    not set_names(), reason="the laboratory is not installed"
)
