"""Every error that a user can cause or mend.

The command line prints these without a traceback. ::

    ReinetError
    ├── TraceError    a trace file that cannot be read as one
    ├── ConfigError   a configuration, option or argument that makes no sense
    ├── ModelError    a model folder that is damaged, foreign or made for another state
    ├── ShimError     the kernel side cannot be loaded, attached or reached
    ├── LinkError     an emulated link cannot be set up or stalled
    ├── DaemonError   the daemon cannot start or cannot be reached
    ├── ServiceError  the training service cannot start, cannot be reached or refuses a request
    └── TransferError a transfer over UDP did not come to its end
"""

import errno

UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS})
"""What a disk says that takes no more; ``os.strerror`` has the words."""
CLOSED = (
    "open it to whoever reads it (chmod o+x its folders, o+r the file), or copy it to where it is open; a daemon "
    "decides and answers as its user, without root's privilege to open other users' files"
)
"""What to do about a file that is closed: that root may not read one surprises who has forgotten the capabilities."""


def unread(error: OSError) -> str:
    """Returns what the system says of a file that cannot be read, with what to do where it is closed."""
    return f"{error.strerror}; {CLOSED}" if error.errno == errno.EACCES else str(error.strerror)


class ReinetError(Exception):
    """The base of all: its message says what was wrong, where (file, line, flow), and how to mend it."""


class TraceError(ReinetError):
    """A trace is malformed; the message starts with ``path:line``."""


class ConfigError(ReinetError):
    """A configuration file, option or argument is wrong; the message names the key."""


class ModelError(ReinetError):
    """A model folder is damaged, untrusted or made for another feature set, head or normaliser layout."""


class ShimError(ReinetError):
    """The kernel shim cannot be loaded, attached or reached."""


class LinkError(ReinetError):
    """An emulated link cannot be set up, or died."""


class DaemonError(ReinetError):
    """The daemon cannot start, or a client cannot reach it."""


class ServiceError(ReinetError):
    """The training service cannot start, cannot be reached, or refuses what was asked of it."""


class TransferError(ReinetError):
    """A transfer over UDP did not come to its end."""
