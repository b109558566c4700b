"""The daemon: caps the flows of a live host under leases, and lets its user watch, pause and stop it.

``config`` says what it does. ``serve`` is the process with capabilities, which loads and watches the others, those of
the folder ``processes``: one decides, one answers callers (``control``) and keeps curves (``event_log``). ``client`` is
the command line's end.
"""
