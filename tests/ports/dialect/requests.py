"""The dialect's other half: `cards.example.com/gpu: N` in resources.limits asks for N cards."""

from central.ask.model import Ask, BadAsk, ContainerAsk
from central.ask.pod import Pod, starting_order

RESOURCE = "cards.example.com/gpu"


class CardRequests:
    resources = frozenset({RESOURCE})
    prefix = "cards.example.com/"

    def parse(self, pod: Pod) -> Ask | BadAsk | None:
        asks = []
        for container, role in starting_order(pod):
            amount = str(container.resources.limits.get(RESOURCE, 0))
            if not amount.isdecimal():
                return BadAsk(message=f"cannot use {RESOURCE} of container {container.name}: write a number of cards")
            if int(amount):
                asks.append(ContainerAsk(name=container.name, role=role, gpus=int(amount)))
        return Ask(containers=tuple(asks)) if asks else None
