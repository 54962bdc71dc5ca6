"""Test settings that contradict each other, or name files that do not exist."""

import ssl
from pathlib import Path

import msgspec
import pytest

from central.daemon.settings import Settings, check, listen_address, read_page_tls, read_prior, read_signer, read_tls
from central.main import main
from central.rank.workload import PodKind, parse_workload
from lading.errors import ConfigError
from simnode.pki import Authority


def test_the_defaults_are_sound() -> None:
    check(Settings())
    assert listen_address(Settings()) == ("127.0.0.1", 8080)
    assert read_signer(Settings()) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("listen", ""), ("listen", "nowhere"), ("page_listen", "nowhere"), ("metrics", "nowhere")),
        *(("tls_certificate", "/no/such.pem"), ("tls_key", "/no/such.pem"), ("tls_client_ca", "/no/such.pem")),
        ("signing_key", "/no/such.pem"),
    ],
)
def test_an_invalid_setting_is_refused(key: str, value: str) -> None:
    with pytest.raises(ConfigError):
        check(msgspec.structs.replace(Settings(), **{key: value}))


def test_tls_files_are_read_by_the_check(tmp_path: Path) -> None:
    none = tmp_path / "none.pem"
    none.write_text("x")
    with pytest.raises(ConfigError, match=str(none)):
        check(Settings(tls_certificate=str(none), tls_key=str(none)))


@pytest.mark.parametrize(("readers", "mode"), [(False, ssl.CERT_REQUIRED), (True, ssl.CERT_NONE)])
def test_readers_of_the_page_need_a_certificate_if_tls_readers_is_false(
    tmp_path: Path, readers: bool, mode: ssl.VerifyMode
) -> None:
    authority = Authority(tmp_path / "ca")
    pair = authority.sign("central", "central", addresses=["127.0.0.1"])
    files = {"tls_certificate": str(pair.certificate), "tls_key": str(pair.key), "tls_client_ca": str(authority.certificate)}
    settings = msgspec.structs.replace(Settings(tls_readers=readers), **files)
    check(settings)
    tls, page_tls = read_tls(settings), read_page_tls(settings)
    assert tls is not None
    assert page_tls is not None
    assert (tls.verify_mode, page_tls.verify_mode) == (ssl.CERT_REQUIRED, mode)


def test_the_name_in_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAME", "central-0")
    assert (Settings().name, Settings(identity="me").name) == ("central-0", "me")
    monkeypatch.delenv("POD_NAME")
    assert Settings().name != ""


@pytest.mark.parametrize(("argv", "status"), [(["--check-config"], 0), (["--listen", "", "--check-config"], 2)])
def test_the_command_line(tmp_path: Path, argv: list[str], status: int, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "central.toml").write_text('policy = "spread"\n')
    with pytest.raises(SystemExit) as end:
        main(["--config", str(tmp_path / "central.toml"), *argv])
    assert (end.value.code or 0) == status
    assert bool(capsys.readouterr().err) is (status != 0)


def test_the_workload_is_read_by_the_check(tmp_path: Path) -> None:
    file = tmp_path / "workload.json"
    with pytest.raises(ConfigError, match=str(file)):
        check(Settings(workload=str(file)))
    file.write_text('{"pods": []}')
    with pytest.raises(ConfigError, match=str(file)):
        check(Settings(workload=str(file)))
    file.write_text('{"pods": [{"weight": 2, "gpus": 1}]}')
    check(Settings(workload=str(file)))
    assert read_prior(Settings(workload=str(file))) == {PodKind(gpus=1): 2.0}
    assert read_prior(Settings()) is None


def test_the_docs_workload_is_one() -> None:
    docs = Path(__file__).parents[4] / "docs/central.md"
    shown = docs.read_text().split("```json\n")[1].split("```")[0]
    assert len(parse_workload(shown.encode())) == 3
