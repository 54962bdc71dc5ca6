"""Read the disruption budgets of the cluster, which limit what central evicts and what may be moved."""

from typing import Final

import msgspec

from central.state.budgets import Budget
from kubectl_lading.terminal.output import warn
from lading.kube.client import KubeClient
from lading.kube.errors import ForbiddenError
from lading.kube.resource import BUDGETS

_BUDGET: Final = msgspec.json.Decoder(Budget)


async def read_budgets(client: KubeClient) -> list[Budget] | None:
    """Return the budgets; None, after a warning, if they may not be read. Raises KubeError."""
    try:
        return [_BUDGET.decode(raw) async for page in client.list_pages(BUDGETS.path()) for raw in page.items]
    except ForbiddenError as e:
        warn(f"disruption budgets were not looked at: {e.message}")
        return None
