"""Make the selinuxfs of a host: the kernel shows there whether SELinux enforces its policy (selinuxfs.c, sel_read_enforce)."""

from pathlib import Path


def enable_selinux(root: Path, *, enforcing: bool = True, use_devices: bool = True) -> None:
    folder = root / "sys/fs/selinux"
    (folder / "booleans").mkdir(parents=True, exist_ok=True)
    (folder / "enforce").write_text(f"{enforcing:d}")
    (folder / "booleans/container_use_devices").write_text(f"{use_devices:d} {use_devices:d}")
