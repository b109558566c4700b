"""The daemon's processes: who has which rights, how they talk, and what becomes of one when another dies.

``supervisor`` draws them. ``child`` and ``sandbox`` say what a process is and what it gives up; ``decide`` and
``front`` are what the two unprivileged ones do. They talk by ``plain`` data; ``remote`` calls the methods that
``controlled`` lists. ``claim`` keeps two daemons from one socket.
"""
