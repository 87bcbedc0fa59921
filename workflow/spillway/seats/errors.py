"""The one error of this folder."""


class SeatsError(Exception):
    """A log, a parameter or a price cannot be used; the message says what was found, where, and the remedy."""
