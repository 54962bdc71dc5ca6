"""The dialect's other half: `cards.example.com/gpu: N` in resources.limits asks for N cards."""

from central.request.amounts import BadRequestError
from central.request.dialects.dialect import ClaimedKeys
from central.request.model import ContainerRequest, DeviceRequest
from central.request.pod import Pod, starting_order

RESOURCE = "cards.example.com/gpu"


class CardRequests:
    name = "cards"
    claims = ClaimedKeys(resources=(RESOURCE,), prefixes=("cards.example.com/",))

    def parse(self, pod: Pod) -> DeviceRequest | None:
        asks = []
        for container, role in starting_order(pod):
            amount = str(container.resources.limits.get(RESOURCE, 0))
            if not amount.isdecimal():
                raise BadRequestError(f"cannot use {RESOURCE} of container {container.name}: write a number of cards")
            if int(amount):
                asks.append(ContainerRequest(name=container.name, role=role, gpus=int(amount)))
        return DeviceRequest(containers=tuple(asks)) if asks else None
