"""`kubectl-lading`, found by kubectl as `kubectl lading`: the command line."""

import click

from lading import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kubectl-lading")
def main() -> None:
    """What is where, why a pod does not run, and what would help."""


if __name__ == "__main__":
    main()
