"""Can this host measure before money is spent on it? Checks of machine, driver, engine and leftovers, with remedies."""
