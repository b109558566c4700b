"""Prints what a build of the checkout needs, for pip: what pyproject.toml names, and, once that is there, what else its
backend asks for (``--of-backend``: CMake and Ninja where the system has none). ``--to-run EXTRA...`` prints what the
package needs with these extras."""

import sys

from pip._vendor import tomli  # tomllib is not there before Python 3.11

with open("pyproject.toml", "rb") as file:
    said = tomli.load(file)
if "--of-backend" in sys.argv:
    from scikit_build_core.build import get_requires_for_build_editable

    needed = get_requires_for_build_editable({})
elif "--to-run" in sys.argv:
    extras = said["project"]["optional-dependencies"]
    needed = [*said["project"]["dependencies"], *(one for extra in sys.argv[2:] for one in extras[extra])]
else:
    needed = said["build-system"]["requires"]
print(*(requirement.replace(" ", "") for requirement in needed))
