"""Show that CAP_SYS_ADMIN alone takes away the device rules of a cgroup v2. Run it as root, with the path of a folder.

It mounts a cgroup v2 hierarchy below the folder, creates a group whose device program denies every device, enters the group
with that capability only, and detaches the program. It prints whether a device node could be opened before and after. This is
why Lading refuses devices to containers with that capability.

Source: bpf(2); Linux, include/uapi/linux/bpf.h (commands, BPF_CGROUP_DEVICE) and Documentation/admin-guide/cgroup-v2.rst.
"""

import ctypes
import os
import platform
import struct
import sys
from pathlib import Path

SYS_BPF = {"x86_64": 321, "aarch64": 280}[platform.machine()]
PROG_LOAD, PROG_ATTACH, PROG_DETACH, PROG_GET_FD_BY_ID, PROG_QUERY = 5, 8, 9, 13, 16
CGROUP_DEVICE_PROGRAM, CGROUP_DEVICE, ALLOW_MULTI = 15, 6, 2
CAP_SYS_ADMIN, CAPABILITIES, PR_CAPBSET_DROP, CAPABILITY_VERSION_3 = 21, 41, 24, 0x20080522
DENY_ALL = struct.pack("<BBhi", 0xB7, 0, 0, 0) + struct.pack("<BBhi", 0x95, 0, 0, 0)  # r0 = 0; exit

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def bpf(command: int, attributes: bytes) -> int:
    buffer = ctypes.create_string_buffer(attributes, 128)
    return check(libc.syscall(SYS_BPF, command, buffer, 128))


def deny_all(group: int) -> None:
    code, licence = ctypes.create_string_buffer(DENY_ALL), ctypes.create_string_buffer(b"GPL")
    load = struct.pack("<IIQQ", CGROUP_DEVICE_PROGRAM, 2, ctypes.addressof(code), ctypes.addressof(licence))
    bpf(PROG_ATTACH, struct.pack("<IIII", group, bpf(PROG_LOAD, load), CGROUP_DEVICE, ALLOW_MULTI))


def keep_sys_admin_only() -> None:
    for capability in range(CAPABILITIES):
        if capability != CAP_SYS_ADMIN:
            libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    mask = 1 << CAP_SYS_ADMIN
    check(libc.capset(struct.pack("<Ii", CAPABILITY_VERSION_3, 0), struct.pack("<IIIIII", mask, mask, 0, 0, 0, 0)))


def detach(group: int) -> None:
    """Detach the first device program of the group."""
    ids = (ctypes.c_uint32 * 8)()
    bpf(PROG_QUERY, struct.pack("<IIIIQI", group, CGROUP_DEVICE, 0, 0, ctypes.addressof(ids), 8))
    program = bpf(PROG_GET_FD_BY_ID, struct.pack("<I", ids[0]))
    bpf(PROG_DETACH, struct.pack("<IIII", group, program, CGROUP_DEVICE, 0))


def opens(device: Path) -> bool:
    try:
        os.close(os.open(device, os.O_RDWR))
    except PermissionError:
        return False
    return True


def enter_and_detach(group: Path, device: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))
    keep_sys_admin_only()
    before = opens(device)
    detach(os.open(group, os.O_RDONLY | os.O_DIRECTORY))
    print(before, opens(device))


def main(folder: Path) -> None:
    root, device = folder / "cgroup2", folder / "null"
    root.mkdir()
    check(libc.mount(b"none", str(root).encode(), b"cgroup2", 0, None))
    group = root / f"lading-test-{os.getpid()}"
    try:
        group.mkdir()
        deny_all(os.open(group, os.O_RDONLY | os.O_DIRECTORY))
        os.mknod(device, 0o20666, os.makedev(1, 3))
        child = os.fork()
        if child == 0:
            enter_and_detach(group, device)
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)
    finally:
        if group.is_dir():
            group.rmdir()
        libc.umount2(str(root).encode(), 2)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
