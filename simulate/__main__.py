"""Run `lading-central simulate`: the command starts this module as a process, because central does not import this package."""

import sys

from lading.errors import LadingError, die
from simulate.command import simulate

if __name__ == "__main__":
    try:
        simulate(sys.argv[1:])
    except LadingError as e:
        die(e)
