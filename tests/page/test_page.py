"""Test the page in a browser: it shows the devices and holders at any size, follows changes, and reacts to a person."""

import pytest
from selenium.webdriver.common.keys import Keys

from central.view.build import node_view
from central.view.pods import view_pods
from kubectl_lading.pods.pods import held_as_text, idle_as_text, used_as_text
from kubectl_lading.pods.top import MAKERS, Of, TopRow
from lading.nodedevices import Use
from lading.vocabulary import GpuUuid, PciAddress
from simnode.page import SimCluster, gpu_quota
from tests.page.browser import Tab
from tests.page.conftest import OpenTab

WHOLE = {"gpu": "1"}
COUNTS = "free/held/unusable/total"


def devices_of(cluster: SimCluster, name: str) -> tuple[str, list[GpuUuid], list[PciAddress]]:
    """Return the pod's node, GPUs and VFs."""
    pod = cluster.pods[name]
    taken = dict(cluster.ledger.holds_on(pod["spec"]["nodeName"]))[pod["metadata"]["uid"]]
    return pod["spec"]["nodeName"], sorted(taken.gpus), sorted(taken.vfs)


# ---- it shows what is there


@pytest.mark.parametrize(("nodes", "size"), [(1, "large"), (20, "medium"), (500, "small")])
def test_a_cluster_of_any_size(tab_on: OpenTab, nodes: int, size: str) -> None:
    cluster = SimCluster(nodes)
    cluster.fill(nodes)
    cluster.make_trouble()
    tab = tab_on(cluster).open_drawn()
    assert len(tab.rows()) == nodes
    assert tab.one("#map").get_attribute("data-size") == size
    assert tab.one("#map").get_attribute("aria-rowcount") == str(nodes)
    first = cluster.status(tab.rows()[0])
    drawn = tab.script("return [...document.querySelector('.node').querySelectorAll('.gpu')].map((cell) => cell.dataset.cell)")
    assert sorted(drawn) == sorted(gpu.uuid for gpu in first.gpus)
    tab.until(lambda: tab.text("#connection") == "live")
    assert tab.script("return document.documentElement.scrollWidth <= innerWidth")


def test_rows_outside_of_the_window_are_drawn_when_they_come_near(tab_on: OpenTab) -> None:
    tab = tab_on(SimCluster(500)).open_drawn()
    drawn = "return document.querySelectorAll('.node:has([role=gridcell])').length"
    assert 20 < tab.script(drawn) < 500
    tab.script("scrollTo(0, document.body.scrollHeight)")
    last = tab.rows()[-1]
    tab.until(lambda: tab.all(f'.node[data-node="{last}"] [role=gridcell]'))


def test_names_outside_of_the_window_are_drawn_after_the_visible_rows(tab_on: OpenTab) -> None:
    tab = tab_on(SimCluster(500))
    held = "const real = setTimeout; window.later = []; window.setTimeout = (f, ms) => ms ? real(f, ms) : later.push(f);"
    added = tab.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": held})
    try:
        tab.open_drawn()
    finally:
        tab.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)
    named = "return document.querySelectorAll('.node .name').length"
    assert 20 < tab.script(named) < 500
    tab.until(lambda: tab.script(f"for (const f of later.splice(0)) f(); {named}") == 500)
    assert "free" in (tab.head(tab.rows()[-1]).get_attribute("aria-label") or "")


def test_a_cluster_without_nodes(tab_on: OpenTab) -> None:
    tab = tab_on(SimCluster(0)).open()
    tab.until(lambda: tab.one("#empty").is_displayed())


def test_held_and_used_are_two_marks(small: SimCluster, tab_on: OpenTab) -> None:
    node, (uuid, other), _ = devices_of(small, "train")
    small.use_of = lambda name, grants: {"use": (Use(uuid=uuid, memory_used_mib=1024, busy_percent=7),), "used_at": 1}  # type: ignore[method-assign]
    small.report(node)
    tab = tab_on(small).open_drawn()
    held, bar = tab.cell(uuid), tab.one(f'[data-cell="{uuid}"] .used > span')
    assert "held" in tab.classes(held)
    assert 0 < bar.size["height"] < tab.one(f'[data-cell="{uuid}"] .box').size["height"] / 10
    assert not tab.all(f'[data-cell="{other}"] .used > span')  # the card's use is not reported: nothing is drawn, not zero
    assert (
        bar.rect["x"] >= tab.one(f'[data-cell="{uuid}"] .box').rect["x"] + tab.one(f'[data-cell="{uuid}"] .box').rect["width"]
    )
    assert "1Gi used, 7% busy" in held.accessible_name
    assert "use not reported" in tab.cell(other).accessible_name


def test_trouble_is_shown_in_words(small: SimCluster, tab_on: OpenTab) -> None:
    small.cordon("gpu-01", small.status("gpu-01").gpus[0].uuid)
    small.set_ready("a100-01", False)
    tab = tab_on(small).open_drawn()
    assert "unusable: cordoned" in tab.cell(small.status("gpu-01").gpus[0].uuid).accessible_name
    assert "not reachable" in tab.head("a100-01").accessible_name
    assert tab.text("#totals").count("1 not ready") == 1


def test_devices_of_a_node_that_is_not_ready_are_not_free(small: SimCluster, tab_on: OpenTab) -> None:
    tab = tab_on(small).open_drawn()
    free = tab.script("return document.querySelectorAll('.map .gpu.free').length")
    assert tab.text("#totals").startswith(f"GPUs {COUNTS}{free}/")
    away, *_ = [name for name in small.nodes if not any(small.ledger.holds_on(name))]
    gpus = [gpu.uuid for gpu in small.status(away).gpus]
    tab.do(lambda one: one.set_ready(away, False))
    tab.until(lambda: tab.text("#totals").startswith(f"GPUs {COUNTS}{free - len(gpus)}/"))
    assert tab.text(f'.node[data-node="{away}"] .free') == f"0/0/{len(gpus)}/{len(gpus)}"
    assert all("withheld" in tab.cell(uuid).accessible_name for uuid in gpus)


def test_why_a_pod_waits(small: SimCluster, tab_on: OpenTab) -> None:
    tab = tab_on(small).open_drawn()
    assert "no-card-large-enough" in tab.text("#waiting-list")
    tab.one("#waiting-list button").click()
    assert "no GPU is large enough" in tab.text("#panel")
    assert "team/large" in tab.text("#panel h2")
    assert "dims" not in tab.classes(tab.one("#map"))  # it is nowhere


# ---- the lists beside the map


def rows_of(tab: Tab) -> list[list[str]]:
    """Return the rows of the list as shown, without heads."""
    cells = "[...row.children].map((cell) => cell.textContent)"
    return list(tab.script(f"return [...document.querySelectorAll('#list tbody tr')].map((row) => {cells})"))


def in_use(cluster: SimCluster, name: str, mib: int, busy: int) -> None:
    """Report the use of all cards of the node."""
    use = tuple(Use(uuid=gpu.uuid, memory_used_mib=mib, busy_percent=busy) for gpu in cluster.status(name).gpus)
    cluster.use_of = lambda name, grants: {"use": use, "used_at": 1}  # type: ignore[method-assign]
    cluster.report(name)


def test_pods_by_state(small: SimCluster, tab_on: OpenTab) -> None:
    in_use(small, devices_of(small, "train")[0], 0, 0)
    tab = tab_on(small).open("#view=pods")
    tab.until(lambda: len(rows_of(tab)) == 4)
    assert not tab.one("#map").is_displayed()
    states = {row[0]: row[1] for row in rows_of(tab)}
    assert states["team/large"] == "waiting"
    assert states["team/train"] == "idle"
    assert {row[0]: row[3:6] for row in rows_of(tab)}["team/train"] == ["2", "2", "2/2"]
    assert "200Gi" in next(row[-1] for row in rows_of(tab) if row[0] == "team/large")
    tab.open("#view=pods&state=idle")
    tab.until(lambda: rows_of(tab) and {row[1] for row in rows_of(tab)} == {"idle"})
    tab.one("#list button").click()
    tab.until(lambda: tab.one("#panel").is_displayed())


@pytest.mark.parametrize(("view", "of"), [("top-pods", Of.PODS), ("namespaces", Of.NAMESPACES), ("nodes", Of.NODES)])
def test_the_page_and_the_command_say_the_same_of_use(tab_on: OpenTab, view: str, of: Of) -> None:
    cluster = SimCluster(7)
    cluster.fill(7)
    tab = tab_on(cluster).open(f"#view={view}")
    views = [node_view(cluster.ledger, cluster.reports.get(name), name) for name in cluster.nodes]
    pods = view_pods(views)
    text = sorted((row.name, *told(row)) for row in MAKERS[of](views, pods))
    tab.until(lambda: rows_of(tab))
    shown = sorted((row[0], *(cell.replace("\u2013", "-") for cell in row[3:])) for row in rows_of(tab))
    assert [row for row in shown if row[0] in {name for name, *_ in text}] == text


def told(row: TopRow) -> list[str]:
    share = row.share
    known = (share.gpus or "-", share.vfs or "-", held_as_text(share), used_as_text(share), idle_as_text(share))
    return [str(cell) for cell in known]


def test_the_tree_of_quotas(small: SimCluster, tab_on: OpenTab) -> None:
    def label() -> str:
        return str(tab.one("#list tbody tr:last-child .quota-bar").get_attribute("aria-label"))

    tab = tab_on(small).open("#view=quotas")
    tab.until(lambda: "There are no quotas" in tab.text("#list"))
    quotas = gpu_quota("science", 4, 8, is_parent=True), gpu_quota("team", 1, 8, parent="science"), gpu_quota("<b>", 4, 2)
    tab.do(lambda cluster: cluster.set_quotas(*quotas))
    tab.until(lambda: len(tab.all("#list tbody tr")) == 2)
    text = [[cell.text for cell in row.find_elements("css selector", "th, td")] for row in tab.all("#list tbody tr")]
    assert [row[:6] for row in text] == [
        ["science", "lading.dev/gpu", "", "2.202", "3.202", "4"],
        ["team", "lading.dev/gpu", "", "2.202", "3.202", "1"],
    ]
    assert label() == "used 1, borrowed 1.202, lent 0"
    assert "<b>: refused, and so are its pods: min 4 GPUs is more than max 2 GPUs" in tab.text("#list")
    assert tab.do(lambda cluster: cluster.schedule(cluster.create("more", WHOLE, namespace="team")))
    tab.until(lambda: label() == "used 1, borrowed 2.202, lent 0")


def test_a_list_follows_and_no_unknown_view_is_drawn(small: SimCluster, tab_on: OpenTab) -> None:
    tab = tab_on(small).open("#view=pods")
    tab.until(lambda: "team/train" in tab.text("#list"))
    tab.do(lambda one: one.end("train"))
    tab.until(lambda: "team/train" not in tab.text("#list"))
    tab.open_drawn("#view=nonsense")
    assert tab.one("#map").is_displayed()


# ---- it follows what happens


def test_a_cell_changes_as_the_cluster_does(small: SimCluster, tab_on: OpenTab) -> None:
    tab = tab_on(small).open_drawn()
    node, (uuid, _), _ = devices_of(small, "train")
    assert "held" in tab.classes(tab.cell(uuid))
    tab.do(lambda one: one.end("train"))
    tab.until(lambda: "free" in tab.classes(tab.cell(uuid)))
    assert "changed" in tab.classes(tab.cell(uuid))
    assert "team/train" not in tab.text("#map")
    tab.do(lambda one: one.remove_node("desk-01" if "desk-01" in one.nodes else "a100-01"))
    tab.until(lambda: "a100-01" not in tab.rows())
    assert tab.one("#map").get_attribute("aria-rowcount") == "2"
    assert node in tab.rows()


def test_a_focused_cell_stays_focused_while_it_changes(small: SimCluster, tab_on: OpenTab) -> None:
    tab = tab_on(small).open_drawn()
    _, (uuid, _), _ = devices_of(small, "train")
    tab.script("arguments[0].focus()", tab.cell(uuid))
    tab.do(lambda one: one.end("train"))
    tab.until(lambda: "free" in tab.classes(tab.cell(uuid)))
    assert tab.focused().get_attribute("data-cell") == uuid


def test_details_follow_too_and_keep_what_was_marked(small: SimCluster, tab_on: OpenTab) -> None:
    node, (uuid, _), _ = devices_of(small, "train")
    tab = tab_on(small).open_drawn("#pod=team/train")
    tab.script("getSelection().selectAllChildren(document.querySelector('#panel code'))")
    other = next(name for name in small.nodes if name not in (node, devices_of(small, "a")[0]))
    free = next(card.gpu.uuid for card in small.ledger.capacity(other).cards)
    tab.do(lambda one: one.cordon(other, free))
    tab.until(lambda: "unusable" in tab.classes(tab.cell(free)))
    assert tab.script("return String(getSelection())") == uuid
    tab.do(lambda one: one.end("train"))
    tab.until(lambda: "Holds no device now" in tab.text("#panel"))


def test_a_server_that_does_not_answer_and_is_back(small: SimCluster, tab_on: OpenTab) -> None:
    tab = tab_on(small).open_drawn()
    tab.set_leads(False)
    tab.until(lambda: tab.one("#notice").is_displayed())
    assert tab.one("#connection").get_attribute("data-state") == "lost"
    assert tab.rows()  # the rows that were known stay
    assert any("503" in text for text in tab.console())  # the browser's own word
    tab.set_leads(True)
    tab.until(lambda: not tab.one("#notice").is_displayed())
    assert tab.one("#connection").get_attribute("data-state") == "live"
    tab.console()


def test_a_replica_that_stands_by(small: SimCluster, tab_on: OpenTab) -> None:
    tab = tab_on(small)
    tab.set_leads(False)
    tab.open()
    assert "stands by" in tab.text("h1")
    assert tab.script("return document.querySelector('meta[http-equiv=refresh]').content") == "5"
    tab.console()  # the browser's own word of 503
    tab.set_leads(True)
    tab.until(lambda: tab.all("[role=gridcell]"))


# ---- it does what a person asks


def lit(tab: Tab) -> set[str]:
    return set(tab.script("return [...document.querySelectorAll('.cell.lit')].map((cell) => cell.dataset.cell)"))


def test_a_pod_is_lit_on_all_its_devices(small: SimCluster, tab_on: OpenTab) -> None:
    tab = tab_on(small).open_drawn()
    _, gpus, _ = devices_of(small, "train")
    tab.hover(tab.cell(gpus[0]))
    tab.until(lambda: set(gpus) < lit(tab))
    assert len(lit(tab)) == 4  # and the NICs of its VFs
    assert tab.one("#tip").is_displayed()
    tab.hover(tab.one("h1"))
    tab.until(lambda: lit(tab) == set())
    tab.cell(gpus[1]).click()
    tab.hover(tab.one("h1"))
    assert set(gpus) < lit(tab)
    assert "team/train" in tab.text("#panel h2")
    tab.one("#panel [aria-label='Close details']").click()
    assert lit(tab) == set()


def test_a_card_that_several_share(small: SimCluster, tab_on: OpenTab) -> None:
    node, (uuid,), _ = devices_of(small, "a")
    tab = tab_on(small).open_drawn()
    tab.cell(uuid).click()
    assert f"node {node}" in tab.text("#panel h2")
    next(one for one in tab.all("#panel button") if one.text == "team/b").click()
    assert "team/b" in tab.text("#panel h2")
    assert lit(tab) == {uuid}


@pytest.mark.parametrize("word", ["node", "uuid", "uuid in part", "model", "pod", "reason", "nothing"])
def test_search(small: SimCluster, tab_on: OpenTab, word: str) -> None:
    node, (uuid, other), _ = devices_of(small, "train")
    model = small.status("a100-01").gpus[0].model
    tab = tab_on(small).open_drawn()
    everything = set(tab.rows())
    typed, rows = {
        "node": ("GPU-01", {"gpu-01"}),
        "uuid": (uuid, {node}),
        "uuid in part": (uuid[:14].lower(), {node}),
        "model": (model.upper(), {"a100-01"}),
        "pod": ("team/train", {node}),
        "reason": ("no-card-large", set()),
        "nothing": ("<nothing>", set()),
    }[word]
    tab.press("/")
    assert tab.focused().get_attribute("id") == "search"
    tab.press(*typed)
    tab.until(lambda: set(tab.rows()) == rows)
    assert tab.text("#found").startswith(f"{len(rows)} of {len(everything)}")
    assert tab.one("#waiting-list").is_displayed() is (word == "reason")
    assert ({uuid, other} < lit(tab)) is (word == "pod")
    tab.press(Keys.ESCAPE)
    tab.until(lambda: set(tab.rows()) == everything)


def test_order_and_groups(tab_on: OpenTab) -> None:
    cluster = SimCluster(6)
    for _ in range(8):
        cluster.schedule(cluster.create(f"p{_}", {"gpu": "1"}))
    cluster.set_ready("l40s-01", False)
    tab = tab_on(cluster).open_drawn("#sort=trouble")
    assert tab.rows()[0] == "l40s-01"
    tab.script("const s = document.getElementById('sort'); s.value = 'free'; s.dispatchEvent(new Event('change'))")
    rooms = [cluster.ledger.capacity(name) for name in tab.rows()]
    free = [sum(card.free for card in room.cards) if room.serving else 0 for room in rooms]
    assert free == sorted(free, reverse=True)
    tab.script("const s = document.getElementById('group'); s.value = 'model'; s.dispatchEvent(new Event('change'))")
    titles = [one.get_attribute("aria-label") or "" for one in tab.all("[role=rowgroup]")]
    models = {cluster.status(name).gpus[0].model for name in cluster.nodes}
    assert [title.rpartition(":")[0] for title in titles] == sorted(models)
    assert tab.script("return location.hash") == "#sort=free&group=model"


def test_a_shared_link_shows_the_same(small: SimCluster, tab_on: OpenTab) -> None:
    node, gpus, _ = devices_of(small, "train")
    tab = tab_on(small).open_drawn()
    tab.one("#search").send_keys("gpu")
    tab.cell(gpus[0]).click()
    link = tab.script("return location.hash")
    assert "q=gpu" in link
    assert "pod=team/train" in link
    tab.open_drawn(link)
    assert (tab.one("#search").get_attribute("value"), lit(tab) > set(gpus)) == ("gpu", True)
    assert "team/train" in tab.text("#panel h2")
    tab.open_drawn("#node=" + node)
    assert f"node {node}" in tab.text("#panel h2")
    assert [one.get_attribute("data-node") for one in tab.all("[aria-selected]")] == [node]
    tab.open_drawn("#pod=team/gone&node=&sort=nonsense&other=1")
    assert "team/gone" in tab.text("#panel h2")
    assert len(tab.rows()) == 3


def test_back_goes_back(small: SimCluster, tab_on: OpenTab) -> None:
    tab = tab_on(small).open_drawn()
    tab.head("gpu-01").click()
    tab.head("a100-01").click()
    tab.driver.back()
    tab.until(lambda: "gpu-01" in tab.text("#panel h2"))
    tab.driver.back()
    tab.until(lambda: not tab.one("#panel").is_displayed())


# ---- as people need it


def test_dark_as_the_system_or_as_chosen(small: SimCluster, tab_on: OpenTab) -> None:
    tab = tab_on(small)
    background = "return getComputedStyle(document.body).backgroundColor"
    tab.emulate(prefers_color_scheme="light")
    light = tab.open_drawn().script(background)
    tab.emulate(prefers_color_scheme="dark")
    tab.until(lambda: tab.script(background) != light)
    dark = tab.script(background)
    tab.one("#theme").click()  # light, whatever the system says
    assert tab.script(background) == light
    assert tab.open_drawn().script(background) == light
    tab.one("#theme").click()
    tab.emulate(prefers_color_scheme="light")
    assert tab.script(background) == dark
    tab.one("#theme").click()
    assert tab.text("#theme") == "Theme: auto"
    assert tab.script(background) == light


@pytest.mark.parametrize("reduced", [False, True])
def test_nothing_moves_for_who_does_not_want_it(small: SimCluster, tab_on: OpenTab, reduced: bool) -> None:
    tab = tab_on(small)
    tab.emulate(prefers_reduced_motion="reduce" if reduced else "no-preference")
    tab.open_drawn()
    _, (uuid, _), _ = devices_of(small, "train")
    tab.do(lambda one: one.end("train"))
    tab.until(lambda: "changed" in tab.classes(tab.cell(uuid)))
    running = tab.script("return document.querySelector('.changed').getAnimations({ subtree: true }).length")
    assert (running == 0) is reduced


def test_on_a_narrow_screen(small: SimCluster, tab_on: OpenTab) -> None:
    tab = tab_on(small)
    tab.resize(380, 760)
    tab.open_drawn("#node=gpu-01")
    assert tab.script("return document.documentElement.scrollWidth <= innerWidth")
    panel = tab.one("#panel").rect
    assert (panel["x"], panel["width"]) == (0, tab.script("return document.documentElement.clientWidth"))
