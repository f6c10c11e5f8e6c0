"""A plug-in of pytest that is loaded before numpy: tests do linear algebra on one thread, as commands do.

conftest.py is too late for it: what it imports has loaded numpy, and libraries read how many threads they may have once.
"""

from __future__ import annotations

from prestep.sim.threads import sum_alone

sum_alone()
