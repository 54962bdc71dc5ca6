"""The distance between two devices, in the words of docs/reference.md."""

from typing import Final

from central.fit.topology import Distance

WORDS: Final = {
    Distance.SWITCH: "same switch",
    Distance.SWITCHES: "several switches below one root port",
    Distance.BRIDGE: "same host bridge",
    Distance.NUMA: "same NUMA node",
    Distance.SOCKET: "same socket",
    Distance.CROSS: "across",
}
