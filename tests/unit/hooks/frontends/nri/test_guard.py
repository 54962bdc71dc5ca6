"""Test what the guard lets pass, refuses and hides."""

import fcntl
from pathlib import Path

import pytest

from hooks.frontends.nri.guard import GuardRules, check_container, hide_cards
from hooks.frontends.nri.guard_plugin import GuardLock, find_guard
from hooks.model.container import Container, EnvVar, Sandbox
from lading.errors import HostError
from lading.reasons import Reason
from lading.vocabulary import ATTACHMENTS, GRANT

RULES = GuardRules(prefixes=("lading.dev/",), hidden={"VISIBLE": "void"}, exempt_namespaces=frozenset({"kube-system"}))
GUARDED = Sandbox(namespace="default", annotations={"lading.dev/gpus": "0"})
PLAIN = Sandbox(namespace="default", annotations={"other": "x"})


@pytest.mark.parametrize("granted", ["", '{"v":1}'])
def test_a_container_with_an_answer_passes(granted: str) -> None:
    """An answer without devices is one too."""
    assert check_container(GUARDED, {GRANT: granted}, RULES) is None


def test_a_container_of_a_guarded_pod_without_an_answer_is_refused() -> None:
    refusal = check_container(GUARDED, {}, RULES)
    assert refusal is not None
    assert refusal.reason is Reason.UNGRANTED


def test_containers_of_other_pods_pass() -> None:
    assert check_container(PLAIN, {}, RULES) is None


@pytest.mark.parametrize("key", [GRANT, ATTACHMENTS])
def test_a_pod_that_says_itself_what_it_was_granted_is_refused(key: str) -> None:
    """A runtime may copy a pod's annotations into its containers."""
    refusal = check_container(Sandbox(annotations={key: "x"}), {key: "x"}, RULES)
    assert refusal is not None
    assert refusal.reason is Reason.ANNOTATION_RESERVED


def test_cards_are_hidden_from_a_container_about_which_lading_was_not_asked() -> None:
    assert hide_cards(PLAIN, Container(env=(EnvVar("VISIBLE", "all"),)), RULES) == (EnvVar("VISIBLE", "void"),)


@pytest.mark.parametrize(
    ("sandbox", "container"),
    [
        (PLAIN, Container(env=(EnvVar("VISIBLE", "void"),))),
        (PLAIN, Container(env=(EnvVar("OTHER", "all"),))),
        (PLAIN, Container(env=(EnvVar("VISIBLE", "all"),), annotations={GRANT: ""})),
        (Sandbox(namespace="kube-system"), Container(env=(EnvVar("VISIBLE", "all"),))),
    ],
    ids=["hidden already", "shows none", "lading has decided", "exempt"],
)
def test_nothing_else_is_changed(sandbox: Sandbox, container: Container) -> None:
    assert hide_cards(sandbox, container, RULES) == ()


def test_nothing_is_hidden_on_a_node_that_hides_nothing() -> None:
    assert hide_cards(PLAIN, Container(env=(EnvVar("VISIBLE", "all"),)), GuardRules(prefixes=())) == ()


def test_a_guard_is_seen_while_it_guards(tmp_path: Path) -> None:
    path = tmp_path / "run" / "guard.lock"
    assert "no guard" in find_guard(path)
    one, other = GuardLock(path), GuardLock(path)
    assert "no guard" in find_guard(path)
    one.show(True)
    other.show(True)
    assert find_guard(path) == ""
    one.show(False)
    assert find_guard(path) == ""
    other.close()
    assert "no guard" in find_guard(path)
    one.close()


def test_looking_for_a_guard_takes_no_lock_away(tmp_path: Path) -> None:
    path = tmp_path / "guard.lock"
    lock = GuardLock(path)
    find_guard(path)
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    lock.close()


def test_a_lock_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HostError, match="cannot open"):
        GuardLock(tmp_path / "link")
