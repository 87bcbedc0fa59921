"""What keeps a measurement from starting."""


class MeasureError(Exception):
    """A measurement cannot start; the message says what is missing and how to make it."""
