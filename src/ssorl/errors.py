"""The errors a user may see: each is one sentence that names the thing, the value and the cure."""


class SsorlError(Exception):
    """Anything the user can mend; the command line prints it without a traceback and exits with 2."""


class DataError(SsorlError):
    """A file, a trajectory or a split that cannot be used as it is."""
