"""Where things lie, from wherever in ``tests/`` one asks."""

from pathlib import Path

HELPERS = Path(__file__).parent
TESTS = HELPERS.parent
ROOT = TESTS.parent
