import pytest

from simnode.vm.qemu import OLDEST, parse_version


@pytest.mark.parametrize(
    ("text", "new_enough"),
    [
        ("QEMU emulator version 10.0.13 (Debian 1:10.0.13+ds-0+deb13u1)", True),
        ("QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2~bpo12+1)", False),
        ("QEMU emulator version 10.1.0", True),
        ("QEMU emulator version 7.2.15", False),
        ("no version", False),
    ],
)
def test_versions_compare_as_numbers(text: str, new_enough: bool) -> None:
    assert (parse_version(text) >= OLDEST) is new_enough
