"""The kinds of errors that ops raise."""


class OpError(Exception):
    """Base of all errors of ops."""


class InvalidArgumentError(OpError, ValueError):
    """The inputs do not fit the op."""


class InternalError(OpError, RuntimeError):
    """The device refused the work."""


class UnimplementedError(OpError, NotImplementedError):
    """This build has no such part."""
