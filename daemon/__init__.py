"""The daemon: caps the flows of a live host under leases, and lets its user watch, pause and stop it.

``config`` says what it does. ``serve`` is the process with capabilities, which loads; ``household`` forks and watches
the others, ``child`` and ``sandbox`` say what such a process is and gives up. ``decide`` runs the loop in one of them;
``front`` answers callers in the other, with ``control`` at the socket of ``claim`` and ``event_log`` for curves. They
talk by ``plain`` data, ``remote`` calls what ``controlled`` lists. ``client`` is the command line's end.
"""
