"""The version of the package, in the lowest layer so that every module can import it."""

__version__ = "0.1.0"
