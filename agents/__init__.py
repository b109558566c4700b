"""Agents: who decides the caps, how they learn it, and how good they are.

``model`` and ``decide`` serve; they import neither torch nor Ray. ``evaluation`` measures, ``learn`` trains.
"""
