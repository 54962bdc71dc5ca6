from protos.cri.runtime.v1 import api_pb2 as cri
from protos.hook.v1 import hook_pb2 as hook
from runtimeproxy.call.sandbox_cache import SandboxCache


def sandbox(an_id: str, **annotations: str) -> hook.PodSandbox:
    return hook.PodSandbox(id=an_id, annotations=annotations)


def listed(an_id: str, **annotations: str) -> cri.PodSandbox:
    return cri.PodSandbox(id=an_id, annotations=annotations)


def container(an_id: str) -> hook.Container:
    return hook.Container(id=an_id)


def test_a_container_is_found_with_its_sandbox() -> None:
    cache = SandboxCache()
    cache.learn_sandbox(sandbox("s", a="1"))
    cache.learn_container("s", container("c"))
    found = cache.container("c")
    assert found is not None
    assert (found[0].id, found[1].id) == ("s", "c")
    assert cache.container("s") is None
    assert cache.sandbox("c") is None


def test_removing_a_sandbox_forgets_its_containers() -> None:
    cache = SandboxCache()
    cache.learn_sandbox(sandbox("s"))
    cache.learn_container("s", container("c"))
    cache.forget_sandbox("s")
    assert cache.container("c") is None
    assert (len(cache), cache.containers) == (0, 0)
    cache.forget_sandbox("s")
    cache.forget_container("c")


def test_a_container_of_an_unknown_sandbox_is_not_kept() -> None:
    cache = SandboxCache()
    cache.learn_container("nowhere", container("c"))
    assert cache.container("c") is None


def test_containers_that_come_and_go_leave_nothing() -> None:
    cache = SandboxCache()
    cache.learn_sandbox(sandbox("s"))
    for i in range(1000):
        cache.learn_container("s", container(f"c{i}"))
        cache.forget_container(f"c{i}")
    assert cache.containers == 0


def test_a_list_brings_what_is_not_known_and_keeps_what_is_known_better() -> None:
    cache = SandboxCache()
    cache.learn_sandbox(hook.PodSandbox(id="s", host_network=True))
    cache.relist(cache.mark(), [listed("s"), listed("t", a="1")], [cri.Container(id="c", pod_sandbox_id="t")])
    s, t, c = cache.sandbox("s"), cache.sandbox("t"), cache.container("c")
    assert s is not None
    assert s.host_network
    assert t is not None
    assert t.annotations["a"] == "1"
    assert c is not None
    assert c[0].id == "t"


def test_a_list_forgets_what_it_lacks() -> None:
    cache = SandboxCache()
    for an_id in ("s", "t"):
        cache.learn_sandbox(sandbox(an_id))
        cache.learn_container(an_id, container(f"c-{an_id}"))
    cache.relist(cache.mark(), [listed("s")], [])
    assert cache.sandbox("s") is not None
    assert cache.sandbox("t") is None
    assert cache.containers == 0


def test_a_list_does_not_forget_what_was_made_while_it_was_asked_for() -> None:
    cache = SandboxCache()
    cache.learn_sandbox(sandbox("old"))
    mark = cache.mark()
    cache.learn_sandbox(sandbox("new"))
    cache.learn_container("old", container("c"))
    cache.relist(mark, [], [])
    assert cache.sandbox("new") is not None
    assert cache.container("c") is not None
    cache.relist(cache.mark(), [], [])
    assert len(cache) == 0


def test_the_oldest_go_first_when_there_are_too_many() -> None:
    cache = SandboxCache(max_sandboxes=2)
    for an_id in ("a", "b", "c"):
        cache.learn_sandbox(sandbox(an_id))
        cache.learn_container(an_id, container(f"c-{an_id}"))
    assert cache.sandbox("a") is None
    assert cache.container("c-a") is None
    assert cache.container("c-c") is not None


def test_memory_is_bounded_by_bytes_too() -> None:
    cache = SandboxCache(max_bytes=10_000)
    for i in range(20):
        cache.learn_sandbox(sandbox(f"s{i}", big="x" * 1000))
    assert len(cache) == 9
    cache.learn_sandbox(sandbox("s19", big="x" * 9000))
    assert cache.sandbox("s19") is not None
    assert len(cache) == 1


def test_what_was_counted_is_given_back() -> None:
    cache = SandboxCache(max_bytes=10_000)
    for i in range(50):
        cache.learn_sandbox(sandbox("s", big="x" * (i * 100)))
        cache.learn_container("s", hook.Container(id="c", image="y" * 4000))
        cache.forget_container("c")
    cache.learn_container("s", hook.Container(id="c", image="y" * 4000))
    cache.learn_sandbox(sandbox("t"))
    assert cache.sandbox("s") is not None


def test_an_update_keeps_the_annotations_that_it_lacks() -> None:
    cache = SandboxCache()
    cache.learn_sandbox(sandbox("s", gone="1", changed="1"))
    update = sandbox("s", changed="2")
    cache.learn_sandbox(update)
    found = cache.sandbox("s")
    assert found is not None
    assert dict(found.annotations) == {"gone": "1", "changed": "2"}
    assert dict(update.annotations) == {"changed": "2"}


def test_the_keys_of_a_pod_are_its_own_and_its_containers() -> None:
    cache = SandboxCache()
    cache.learn_sandbox(sandbox("s", a="1"))
    cache.learn_container("s", hook.Container(id="c", annotations={"grant": "{}"}))
    assert cache.annotations("s") == {"a", "grant"}
    assert cache.annotations("t") == frozenset()
