"""Boot a guest and print how to get in: `python -m simnode.vm [--system NAME] [--profile NAME]`. Ctrl-C ends it."""

import argparse
import shlex
import signal
import sys
import time

from lading.errors import LadingError, die
from simnode.vm.guest import PROFILE, Guest
from simnode.vm.image import build_image
from simnode.vm.qemu import find_qemu
from simnode.vm.systems import SYSTEMS, find_system


def main() -> None:
    parser = argparse.ArgumentParser(prog="simnode.vm", description="Boot a node of real kernel objects in QEMU.")
    names = ", ".join(system.name for system in SYSTEMS)
    parser.add_argument("--system", default=SYSTEMS[0].name, help=f"one of: {names} [{SYSTEMS[0].name}]")
    hardware = "the hardware: a file, or a name in simnode/profiles [small.json, with four cards and two PFs]"
    parser.add_argument("--profile", default=PROFILE, help=hardware)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the cleanup runs
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets its background processes ignore it
    try:
        image = build_image(find_system(args.system))
        qemu = find_qemu()
        print("booting; without KVM this takes some minutes", flush=True)
        began = time.monotonic()
        with Guest(image, qemu, profile=args.profile) as guest:
            print(f"the guest answers after {time.monotonic() - began:.0f} s, in boot {guest.boots}")
            print(f"  shell:    {shlex.join(guest.ssh())}")
            print(f"  console:  tail -F {guest.console}")
            print(f"  files:    {guest.share} is the same folder here and there")
            print("Ctrl-C ends it", flush=True)
            while guest.running:
                time.sleep(1)
    except LadingError as e:
        die(e)
    except KeyboardInterrupt:
        print()


if __name__ == "__main__":
    main()
