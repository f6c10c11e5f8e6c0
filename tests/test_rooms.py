"""The tests of the rooms, by the path at which the quick checks before a landing still look for them."""

from tests.contracts.test_rooms import *  # noqa: F403
