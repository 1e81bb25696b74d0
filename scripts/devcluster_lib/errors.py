"""The one error of the development cluster."""


class DevClusterError(Exception):
    """Something the user can act on; the text is one sentence that says what to do."""
