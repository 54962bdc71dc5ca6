"""Give the rules of a node that takes assignments by hand, which tests change."""

from hooks.grant.cards import UnassignedPolicy
from hooks.grant.decide import Rules
from hooks.grant.pod import PodPolicy
from hooks.grant.rdma import RdmaInjection
from hooks.isolation.unenforced import Unenforced
from hooks.model.assignment import Form, Trust
from hooks.vendors.nvidia.vendor import Nvidia

RULES = Rules(
    node_name="n1",
    trust=Trust(accepted=frozenset({Form.MANUAL})),
    pod=PodPolicy(),
    unassigned=UnassignedPolicy(),
    vendors=(Nvidia(),),
    isolations=(Unenforced(),),
    rdma=RdmaInjection(),
)
