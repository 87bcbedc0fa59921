"""Spillway: serve a mixture-of-experts model that does not fit in GPU memory, measure the server, build the paper."""

__version__ = "0.1.0"
