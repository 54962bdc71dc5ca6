"""Run `kubectl-lading`, which kubectl finds as its plugin `kubectl lading`. Each command is a module, registered here."""

import sys
from io import TextIOWrapper

import click

from kubectl_lading.completion import completion, print_candidates
from kubectl_lading.dump.sysdump import sysdump
from kubectl_lading.flags import Group
from kubectl_lading.install.install import install
from kubectl_lading.installation.preflight import preflight
from kubectl_lading.installation.status import status
from kubectl_lading.plans.defrag import defrag
from kubectl_lading.plans.simulate import simulate
from kubectl_lading.pods.pod import pod
from kubectl_lading.pods.pods import pods
from kubectl_lading.pods.top import top
from kubectl_lading.pods.why import why
from kubectl_lading.where.cordon import cordon, uncordon
from kubectl_lading.where.gpu import gpu
from kubectl_lading.where.node import node
from kubectl_lading.where.nodes import nodes
from kubectl_lading.where.quota import quota
from lading import __version__


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kubectl-lading")
def main() -> None:
    """Show where devices are, why a pod does not run, and what would help; install Lading."""
    for stream in (sys.stdout, sys.stderr):  # a terminal without UTF-8 shows a question mark for other characters
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


for one in (
    completion,
    cordon,
    defrag,
    gpu,
    install,
    node,
    nodes,
    pod,
    pods,
    preflight,
    quota,
    simulate,
    status,
    sysdump,
    top,
    uncordon,
    why,
):
    main.add_command(one)


def complete_for_kubectl() -> None:
    """Print candidates for `kubectl_complete-lading WORD… INCOMPLETE`."""
    print_candidates(main, sys.argv[1:])


if __name__ == "__main__":
    main()
