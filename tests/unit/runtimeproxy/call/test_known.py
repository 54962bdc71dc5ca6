from protos.cri.runtime.v1 import api_pb2 as cri
from protos.hook.v1 import hook_pb2 as hook
from runtimeproxy.call.known import Known


def sandbox(an_id: str, **annotations: str) -> hook.PodSandbox:
    return hook.PodSandbox(id=an_id, annotations=annotations)


def listed(an_id: str, **annotations: str) -> cri.PodSandbox:
    return cri.PodSandbox(id=an_id, annotations=annotations)


def container(an_id: str) -> hook.Container:
    return hook.Container(id=an_id)


def test_a_container_is_found_with_its_sandbox() -> None:
    known = Known()
    known.learn_sandbox(sandbox("s", a="1"))
    known.learn_container("s", container("c"))
    found = known.container("c")
    assert found is not None
    assert (found[0].id, found[1].id) == ("s", "c")
    assert known.container("s") is None
    assert known.sandbox("c") is None


def test_removing_a_sandbox_forgets_its_containers() -> None:
    known = Known()
    known.learn_sandbox(sandbox("s"))
    known.learn_container("s", container("c"))
    known.forget_sandbox("s")
    assert known.container("c") is None
    assert (len(known), known.containers) == (0, 0)
    known.forget_sandbox("s")
    known.forget_container("c")


def test_a_container_of_an_unknown_sandbox_is_not_kept() -> None:
    known = Known()
    known.learn_container("nowhere", container("c"))
    assert known.container("c") is None


def test_containers_that_come_and_go_leave_nothing() -> None:
    known = Known()
    known.learn_sandbox(sandbox("s"))
    for i in range(1000):
        known.learn_container("s", container(f"c{i}"))
        known.forget_container(f"c{i}")
    assert known.containers == 0


def test_a_list_brings_what_is_not_known_and_keeps_what_is_known_better() -> None:
    known = Known()
    known.learn_sandbox(hook.PodSandbox(id="s", host_network=True))
    known.relist(known.mark(), [listed("s"), listed("t", a="1")], [cri.Container(id="c", pod_sandbox_id="t")])
    s, t, c = known.sandbox("s"), known.sandbox("t"), known.container("c")
    assert s is not None
    assert s.host_network
    assert t is not None
    assert t.annotations["a"] == "1"
    assert c is not None
    assert c[0].id == "t"


def test_a_list_forgets_what_it_lacks() -> None:
    known = Known()
    for an_id in ("s", "t"):
        known.learn_sandbox(sandbox(an_id))
        known.learn_container(an_id, container(f"c-{an_id}"))
    known.relist(known.mark(), [listed("s")], [])
    assert known.sandbox("s") is not None
    assert known.sandbox("t") is None
    assert known.containers == 0


def test_a_list_does_not_forget_what_was_made_while_it_was_asked_for() -> None:
    known = Known()
    known.learn_sandbox(sandbox("old"))
    mark = known.mark()
    known.learn_sandbox(sandbox("new"))
    known.learn_container("old", container("c"))
    known.relist(mark, [], [])
    assert known.sandbox("new") is not None
    assert known.container("c") is not None
    known.relist(known.mark(), [], [])
    assert len(known) == 0


def test_the_oldest_go_first_when_there_are_too_many() -> None:
    known = Known(max_sandboxes=2)
    for an_id in ("a", "b", "c"):
        known.learn_sandbox(sandbox(an_id))
        known.learn_container(an_id, container(f"c-{an_id}"))
    assert known.sandbox("a") is None
    assert known.container("c-a") is None
    assert known.container("c-c") is not None


def test_memory_is_bounded_by_bytes_too() -> None:
    known = Known(max_bytes=10_000)
    for i in range(20):
        known.learn_sandbox(sandbox(f"s{i}", big="x" * 1000))
    assert len(known) == 9
    known.learn_sandbox(sandbox("s19", big="x" * 9000))
    assert known.sandbox("s19") is not None
    assert len(known) == 1


def test_what_was_counted_is_given_back() -> None:
    known = Known(max_bytes=10_000)
    for i in range(50):
        known.learn_sandbox(sandbox("s", big="x" * (i * 100)))
        known.learn_container("s", hook.Container(id="c", image="y" * 4000))
        known.forget_container("c")
    known.learn_container("s", hook.Container(id="c", image="y" * 4000))
    known.learn_sandbox(sandbox("t"))
    assert known.sandbox("s") is not None


def test_an_update_keeps_the_annotations_that_it_lacks() -> None:
    known = Known()
    known.learn_sandbox(sandbox("s", gone="1", changed="1"))
    update = sandbox("s", changed="2")
    known.learn_sandbox(update)
    found = known.sandbox("s")
    assert found is not None
    assert dict(found.annotations) == {"gone": "1", "changed": "2"}
    assert dict(update.annotations) == {"changed": "2"}


def test_the_keys_of_a_pod_are_its_own_and_its_containers() -> None:
    known = Known()
    known.learn_sandbox(sandbox("s", a="1"))
    known.learn_container("s", hook.Container(id="c", annotations={"grant": "{}"}))
    assert known.annotations("s") == {"a", "grant"}
    assert known.annotations("t") == frozenset()
