"""What collecting the unit tests made."""

import gc


def pytest_collection_finish() -> None:
    """Leave it out of garbage collection: a cell of the load client collects twice, which takes 0.17 s each with all of it."""
    gc.freeze()
