# SPDX-License-Identifier: Apache-2.0
"""Exceptions by kind. Messages name the argument or file, the value, the limit, and what to do."""
import builtins


class Error(Exception):
    """What isobit raises; its other exceptions are of this kind."""


class InvalidArgumentError(Error, ValueError):
    """A value that the caller passed is outside its limits."""


class InvalidFileError(Error, ValueError):
    """A file's content is truncated, inconsistent or of an unknown version."""


class IoError(Error, OSError):
    """The operating system refused a read or a write."""


class NotSupportedError(Error, NotImplementedError):
    """Well-formed, but isobit refuses it by name."""


class OverflowError(Error, builtins.OverflowError):
    """The overflow proof failed; the message names the tensor and its bound."""


class FailedPreconditionError(Error, RuntimeError):
    """Called in the wrong order, such as finish() before observe()."""


# In the order of isobit::StatusCode, from kInvalidArgument on.
BY_CODE = (InvalidArgumentError, InvalidFileError, IoError, NotSupportedError, OverflowError, FailedPreconditionError)
