from runtimeproxy.doctor.ready import MENDS
from runtimeproxy.readiness import decide_ready


def test_every_condition_has_its_mend() -> None:
    conditions = decide_ready(
        runtime="away",
        socket="gone",
        stopping=False,
        hooks_dir="/etc/lading/hooks.d",
        hooks_dir_problems=["50.json: not JSON"],
        hook_silences={"50.json": "silent"},
        guarded_prefixes=["lading.dev/"],
        denied=["/x"],
    )
    assert not any(condition.ok for condition in conditions)
    assert {condition.name.partition(" ")[0] for condition in conditions} == set(MENDS)
