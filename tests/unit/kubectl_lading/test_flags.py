"""Test the flags of every command, in any position, and durations."""

import click
import pytest
from click.testing import CliRunner

from kubectl_lading.command import command
from kubectl_lading.flags import Duration, Flags, Group, Output, Scope


def parse(*text: str) -> Flags:
    flagses: list[Flags] = []

    @click.group(cls=Group)
    def main() -> None:
        pass

    @command("look", scope=Scope.PODS)
    @click.argument("name", default="")
    async def look(flags: Flags, name: str) -> None:
        flagses.append(flags)

    main.add_command(look)
    done = CliRunner().invoke(main, text)
    assert done.exit_code == 0, done.output
    return flagses[0]


def test_flags_have_the_defaults_of_kubectl() -> None:
    assert parse("look") == Flags(output=Output.TABLE, namespace="", all_namespaces=False, lading_namespace="lading-system")


@pytest.mark.parametrize("words", [("-n", "ns", "look"), ("look", "-n", "ns"), ("look", "x", "--namespace=ns")])
def test_a_flag_may_stand_before_or_after_the_command(words: tuple[str, ...]) -> None:
    assert parse(*words) == Flags(namespace="ns")


def test_a_flag_after_the_command_is_preferred() -> None:
    assert parse("-n", "one", "-o", "json", "look", "-n", "other") == Flags(namespace="other", output=Output.JSON)


def test_every_flag_is_read() -> None:
    text = parse("--context=c", "--kubeconfig=f", "-A", "look", "--central=http://c", "--lading-namespace=l", "-owide")
    assert text == Flags(
        context="c", kubeconfig="f", all_namespaces=True, central="http://c", lading_namespace="l", output=Output.WIDE
    )
    assert parse("--request-timeout=1m30s", "look") == Flags(request_timeout_s=90.0)


@pytest.mark.parametrize(("scope", "refused"), [(Scope.CLUSTER, {"-n=x", "-A"}), (Scope.POD, {"-A"}), (Scope.PODS, set[str]())])
def test_a_flag_that_would_be_ignored_is_refused(scope: Scope, refused: set[str]) -> None:
    """Check the flag before and after the command's name, and that its help does not list it."""

    @click.group(cls=Group)
    def main() -> None:
        pass

    @command("look", scope=scope)
    async def look(flags: Flags) -> None:
        pass

    main.add_command(look)
    for word in ("-n=x", "-A"):
        codes = {CliRunner().invoke(main, text).exit_code for text in ([word, "look"], ["look", word])}
        assert codes == ({2} if word in refused else {0})
        assert (f"  {word[:2]}," in CliRunner().invoke(main, ["look", "--help"]).output) == (word not in refused)


@pytest.mark.parametrize("time", ["0", "soon", ""])
def test_an_invalid_request_timeout_is_a_usage_error(time: str) -> None:
    @command("look")
    async def look(flags: Flags) -> None:
        pass

    assert CliRunner().invoke(look, ["--request-timeout", time]).exit_code == 2


def test_an_unknown_output_is_a_usage_error() -> None:
    @command("look")
    async def look(flags: Flags) -> None:
        pass

    assert CliRunner().invoke(look, ["-o", "xml"]).exit_code == 2


def test_help_explains_every_column() -> None:
    @command("look", columns=(("HELD", "what pods were given"),))
    async def look(flags: Flags) -> None:
        pass

    output = CliRunner().invoke(look, ["--help"]).output
    assert "HELD" in output
    assert "what pods were given" in output


@pytest.mark.parametrize(("text", "seconds"), [("5m", 300), ("90", 90), ("90s", 90), ("1h30m", 5400), ("0s", 0)])
def test_durations(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "5 m", "-1s", "m", "1d"])
def test_an_invalid_duration_is_an_error(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Duration().convert(text, None, None)


def test_a_duration_below_the_least_is_an_error() -> None:
    least = Duration(least=1)
    assert least.convert("1s", None, None) == 1
    with pytest.raises(click.BadParameter):
        least.convert("0", None, None)
