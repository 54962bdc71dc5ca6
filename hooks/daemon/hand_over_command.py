"""Run the operator's command for a card after its last grant has ended: a reset, a check or a clean-up.

Where systemd runs, the command is a transient service, `lading-hand-over-<UUID>`. So it is outside the sandbox of lading-hooks,
and runs once at a time for a card, even if lading-hooks restarts meanwhile. Source: systemd-run(1), sd_booted(3).
"""

from collections.abc import Sequence
from typing import Final

from hooks.host.commands import bare_env, run_command
from hooks.model.inventory import Gpu

_MARGIN_S: Final = 5.0  # extra seconds for systemd to end the command after its deadline


async def run_hand_over(gpu: Gpu, *, command: Sequence[str], deadline_s: float, as_service: bool) -> None:
    """Run the command, with {uuid} and {bdf} in its arguments replaced by the card's. Raise HostError if the command fails, or
    runs for longer than `deadline_s`."""
    text = [word.replace("{uuid}", gpu.uuid).replace("{bdf}", gpu.bdf) for word in command]
    env = bare_env()
    if not as_service:
        await run_command(text, env=env, wait_s=deadline_s)
        return
    service = [f"--unit=lading-hand-over-{gpu.uuid}", f"--property=RuntimeMaxSec={deadline_s:g}"]
    systemd_run = ["systemd-run", "--quiet", "--collect", "--wait", "--pipe", *service, "--"]
    await run_command([*systemd_run, *text], env=env, wait_s=deadline_s + _MARGIN_S)
