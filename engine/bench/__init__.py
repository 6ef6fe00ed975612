"""How fast an engine is: alone (`alone`), and beside others on the same work (`peers`, `compare`).

Knows: workloads, clocks, other engines' libraries where they are installed. Nothing of the engine imports this.
"""
