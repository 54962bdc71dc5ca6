"""Test hostile names: the page shows them as text and executes nothing."""

import json

import msgspec
import pytest

from lading.nodedevices import Grant, GrantedGpu
from lading.vocabulary import PodUid
from simnode.page import SimCluster
from tests.page.browser import Tab
from tests.page.conftest import OpenTab

SCRIPT = "<script>window.harmed = 1</script><img src=x onerror='window.harmed = 2'>"
TURNED = "ok\u202egnp.exe\u2066\u200b\x07"
LONG = "x" * 5000
STACKED = "o" + "\u0301" * 300
NAMES = (
    *(SCRIPT, TURNED, LONG, STACKED, '"><b onclick="window.harmed=3">', "javascript:window.harmed=4", "__proto__"),
    *("{{7*7}}", "a/b c#d&e=f"),
)


def harmed(name: str) -> SimCluster:
    """Create a node, a holder, a model, a problem and a waiting pod with that name."""
    cluster = SimCluster(2)
    node = cluster.nodes[0]
    gpus = cluster.status(node).gpus
    held = (GrantedGpu(uuid=gpus[0].uuid),)
    grant = Grant(pod=PodUid("u1"), container=name, namespace=name, pod_name=name, gpus=held)
    cluster.grants[node]["u1"] = [grant]
    cluster.report(
        node, gpus=(msgspec.structs.replace(gpus[0], model=name, unhealthy=name), *gpus[1:]), problems=(name,), driver=name
    )
    cluster.cordon(node, name)
    cluster.create(name, {"gpu": "1"}, namespace=name)
    return cluster


@pytest.mark.parametrize(
    "name", NAMES, ids=["script", "turned", "long", "stacked", "quote", "scheme", "proto", "template", "link"]
)
def test_a_name_does_nothing(tab_on: OpenTab, name: str) -> None:
    cluster = harmed(name)
    tab = tab_on(cluster).open_drawn()
    uuid = cluster.status(cluster.nodes[0]).gpus[0].uuid
    assert visible(name) in tab.cell(uuid).get_attribute("aria-label").replace(" ", " ")  # type: ignore[union-attr]
    tab.until(lambda: shows_tip(tab, uuid))
    tab.cell(uuid).click()  # the pod of the card
    assert visible(name) in tab.text("#panel h2")
    link = tab.script("return location.hash")
    tab.open_drawn(link)
    assert visible(name) in tab.text("#panel h2")
    tab.head(cluster.nodes[0]).click()
    assert visible(name) in tab.text("#panel")
    assert visible(name) in tab.text("#waiting")
    assert_unharmed(tab)


def shows_tip(tab: Tab, device: str) -> bool:
    """Return whether the tooltip is shown. It disappears when the page scrolls, as the page does at first to show the
    device."""
    tab.hover(tab.one("#found"))
    tab.hover(tab.cell(device))
    return tab.one("#tip").is_displayed()


def visible(name: str) -> str:
    """Show each character that turns the text around, or cannot be seen, by its number."""
    return "".join(char if char.isprintable() else f"\\u{{{ord(char):x}}}" for char in name)


def assert_unharmed(tab: Tab) -> None:
    assert tab.script("return window.harmed ?? null") is None
    assert tab.script("return document.querySelectorAll('main script, main img, main b[onclick], main a').length") == 0
    assert tab.script("return document.documentElement.scrollWidth <= innerWidth")
    assert not tab.script(r"return /[\u202a-\u202e\u2066-\u2069\u200b\u0007]/.test(document.body.textContent)")


def test_a_link_that_someone_sent(tab_on: OpenTab) -> None:
    tab = tab_on(harmed("plain"))
    tab.open_drawn(f"#q=x&pod={SCRIPT}&node={SCRIPT}&sort={SCRIPT}&group=__proto__")
    assert SCRIPT in tab.text("#panel h2")
    assert_unharmed(tab)


def test_the_policy_holds(tab_on: OpenTab) -> None:
    """Check that the browser itself refuses what the page's policy forbids."""
    tab = tab_on(SimCluster(1)).open_drawn()
    tab.script(
        """
        window.refused = [];
        document.addEventListener("securitypolicyviolation", (event) => refused.push(event.effectiveDirective));
        const script = document.createElement("script");
        try { script.textContent = "window.harmed = 1"; } catch { refused.push("trusted-types"); }
        document.body.append(script);
        const image = document.createElement("img");
        image.src = "http://example.invalid/x.png";
        document.body.append(image);
        try { document.body.insertAdjacentHTML("beforeend", "<p>x</p>"); } catch { refused.push("trusted-types"); }
        """
    )
    tab.until(lambda: "img-src" in tab.script("return window.refused"))
    assert "trusted-types" in tab.script("return window.refused")
    assert tab.script("return window.harmed ?? null") is None
    tab.console()  # empties the console, which is full of refusals


def test_the_modules_say_what_cannot_be_observed(tab_on: OpenTab) -> None:
    tab = tab_on(SimCluster(1)).open_drawn()
    cleaned = tab.driver.execute_async_script(
        "const done = arguments[1]; import(new URL('words.js', location)).then((m) => done(arguments[0].map(m.clean)))",
        ["a\u202eb", "c\nd", "ünï-cödé 漢字 🚀", None],
    )
    assert cleaned == ["a\\u{202e}b", "c\\u{a}d", "ünï-cödé 漢字 🚀", ""]
    assert json.dumps(cleaned)
