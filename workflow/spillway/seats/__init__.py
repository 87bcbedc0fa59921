"""How many developers does a server carry, and what does it cost? Activity from logs, demand, routing, cost."""
