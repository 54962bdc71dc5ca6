"""Set `NVIDIA_VISIBLE_DEVICES=void` for a container without a GPU from Lading, so that no image or pod can show it cards.

Many images set `NVIDIA_VISIBLE_DEVICES=all`; where NVIDIA's runtime is the node's default, each such container would see every
card. Where a device plugin serves the node too, the value from kubelet is kept, and restored if the pod's own value would
replace it. A pod that knows a card's UUID can then still name that card: this is a weakness of the device plugin.
"""

from hooks.model.container import Adjustment, Container, EnvVar
from hooks.vendors.nvidia.supplied import VISIBLE_DEVICES, is_supplied, supplied_card

VOID = "void"


def hide(container: Container, *, coexist: bool) -> Adjustment:
    """Return the adjustment that hides all cards from a container. `coexist`: a device plugin serves the node too."""
    value = VOID
    if coexist:
        values = container.values_of(VISIBLE_DEVICES)
        value = next(filter(is_supplied, values), VOID)
        if values == [value] or (not values and supplied_card(container)):
            return Adjustment()
    return Adjustment(env=(EnvVar(VISIBLE_DEVICES, value),))
