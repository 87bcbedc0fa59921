"""What can be wrong with a comparison of answers."""


class QualityError(Exception):
    """A comparison cannot start or go on; the message says what was found, what was expected and what to do."""
