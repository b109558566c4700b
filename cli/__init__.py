"""The ``reinet`` command: one thin file per subcommand, mounted by ``main``.

A command parses, calls one room's function and shows the result; ``output`` is the only way to the terminal.
"""
