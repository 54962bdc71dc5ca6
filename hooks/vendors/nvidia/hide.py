"""Set `NVIDIA_VISIBLE_DEVICES=void` for a container without a GPU from Lading, so that no image or pod can show it cards.

Many images carry `NVIDIA_VISIBLE_DEVICES=all`; where NVIDIA's runtime is the node's default, each such container would see
every card. Where a device plugin serves the node too, what kubelet supplied is left as it was, and put back where the pod's own
value would replace it. A pod that knows a card's UUID can then still name it: that is the device plugin's weakness, and stays
with it.
"""

from hooks.model.container import Adjustment, Container, EnvVar
from hooks.vendors.nvidia.supplied import VISIBLE_DEVICES, is_supplied, supplied_card

VOID = "void"


def hide(container: Container, *, coexist: bool) -> Adjustment:
    """Return the adjustment. `coexist`: a device plugin serves the node."""
    value = VOID
    if coexist:
        values = container.values_of(VISIBLE_DEVICES)
        value = next(filter(is_supplied, values), VOID)
        if values == [value] or (not values and supplied_card(container)):
            return Adjustment()
    return Adjustment(env=(EnvVar(VISIBLE_DEVICES, value),))
