"""The errors of the development cluster."""


class DevClusterError(Exception):
    """Something the user can act on; the text is one sentence that says what to do."""


class MovingSuiteError(DevClusterError):
    """A Debian that is not released, and so moves, could not be had today."""
