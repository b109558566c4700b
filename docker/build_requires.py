"""Prints what a build of the checkout needs, for pip: what pyproject.toml names, and, once that is there, what else its
backend asks for (``--of-backend``: CMake and Ninja where the system has none)."""

import sys

from pip._vendor import tomli  # tomllib is not there before Python 3.11

if "--of-backend" in sys.argv:
    from scikit_build_core.build import get_requires_for_build_editable

    needed = get_requires_for_build_editable({})
else:
    with open("pyproject.toml", "rb") as file:
        needed = tomli.load(file)["build-system"]["requires"]
print(*(requirement.replace(" ", "") for requirement in needed))
