"""The daemon: caps the flows of a live host under leases, and lets its user watch, pause and stop it.

``config`` says what it does, ``loop`` decides, ``control`` and ``client`` talk over the Unix socket, ``event_log``
keeps curves, ``serve`` is the process around them.
"""
