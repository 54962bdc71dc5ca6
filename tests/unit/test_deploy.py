"""Test the manifests of deploy/ without a cluster: names, ports and paths agree with the code and each other."""

import itertools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import yaml

from central.assignment.networks import parse_vf_network
from central.daemon import announce
from central.daemon.certificates import SCHEDULER, render_secrets
from central.daemon.settings import Settings, listen_address
from central.quota.model import LABEL_PREEMPTIBLE, LABEL_QUOTA
from central.request.model import DeviceRequest
from central.request.parse import OWN_ONLY, parse_request
from central.request.pod import Pod
from kubectl_lading.central import DEFAULT_PORT, PORT
from kubectl_lading.installation import control_checks
from lading import __version__, nodedevices, vocabulary
from lading.health import parse_address
from lading.settings import convert
from lading.vocabulary import CENTRAL

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
FOLDERS: Final = sorted(path.parent for path in DEPLOY.rglob("kustomization.yaml"))
WORKLOAD: Final = Path("/etc/lading/workload/workload.json")
MONITORING: Final = DEPLOY / "monitoring"  # for Prometheus, not for kubectl: tests/unit/deploy/test_monitoring.py
MANIFESTS: Final = sorted(path for path in DEPLOY.rglob("*.yaml") if path.parent not in (MONITORING, DEPLOY / "chart"))
NAMES: Final = (CENTRAL, SCHEDULER)
BY_HAND: Final = {DEPLOY / "samples/quota.yaml", DEPLOY / "samples/networks.yaml"}  # applied by themselves


def read_file(path: Path) -> list[Any]:
    return [document for document in yaml.load_all(path.read_text(), yaml.CSafeLoader) if document]


def documents() -> Iterator[Any]:
    for path in MANIFESTS:
        yield from read_file(path)


def find(kind: str, name: str) -> Any:
    result = [d for d in documents() if d["kind"] == kind and d["metadata"]["name"] == name]
    assert len(result) == 1
    return result[0]


def settings() -> Settings:
    path = DEPLOY / "central/central.toml"
    values = tomllib.loads(path.read_text())
    return convert(Settings, values, dict.fromkeys(values, str(path)), str(path))


def scheduler_config() -> Any:
    return read_file(DEPLOY / "scheduler/config.yaml")[0]


def pod_spec(deployment: str) -> Any:
    return find("Deployment", deployment)["spec"]["template"]["spec"]


# ---- every manifest


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_kustomization_names_every_file_of_its_folder(folder: Path) -> None:
    kustomization = read_file(folder / "kustomization.yaml")[0]
    files = [file for generator in kustomization.get("configMapGenerator", []) for file in generator["files"]]
    there = {path for path in folder.iterdir() if path.name != "kustomization.yaml"} - BY_HAND
    if folder == DEPLOY:
        there -= {
            MONITORING,
            *(
                DEPLOY / name
                for name in ("samples", "acceptance", "flavors", "required-plugin", "runtime-class", "cert-manager")
            ),
        }
        there -= {
            DEPLOY / name for name in ("install-node.sh", "wheel.py", "release.py", "sbom.py", "image", "chart", "__pycache__")
        }  # files for nodes and for a build
    assert {folder / name for name in [*kustomization["resources"], *files]} == there


def test_what_has_a_namespace_says_it() -> None:
    cluster_wide = {
        "Namespace",
        "CustomResourceDefinition",
        "PriorityClass",
        "ClusterRole",
        "ClusterRoleBinding",
        "RuntimeClass",
    }
    for document in itertools.chain.from_iterable(map(read_file, MANIFESTS)):
        kind = document["kind"]
        if kind in cluster_wide or kind.startswith(("Validating", "Mutating", "KubeScheduler", "Kustomization")):
            continue
        namespace = document["metadata"].get("namespace")
        assert namespace in ({None} if kind in ("Pod", "ResourceQuota") else {"lading-system", "lading-nodes", "kube-system"})


def test_no_generated_name_is_a_leases() -> None:
    """Check generated names: kustomize rewrites a generated name everywhere, in the resourceNames of a rule for leases too."""
    names = [resource for d in documents() for rule in d.get("rules", []) or [] for resource in rule.get("resourceNames", [])]
    generated = [g["name"] for d in documents() for g in d.get("configMapGenerator", [])]
    assert names
    assert not set(names) & set(generated)


def test_every_image_has_a_tag_that_stays() -> None:
    for folder in (DEPLOY / "central", DEPLOY / "node", DEPLOY / "scheduler", DEPLOY / "samples"):
        tags = {image["name"]: image["newTag"] for image in read_file(folder / "kustomization.yaml")[0]["images"]}
        for document in itertools.chain.from_iterable(map(read_file, folder.glob("*.yaml"))):
            spec = document.get("spec", {}).get("template", document).get("spec", {})
            for container in [*spec.get("initContainers", []), *spec.get("containers", [])]:
                assert tags[container["image"]] not in ("", "latest")


@pytest.mark.parametrize("folder", ["central", "node"])
def test_an_image_of_ladings_is_this_version(folder: str) -> None:
    (image,) = read_file(DEPLOY / folder / "kustomization.yaml")[0]["images"]
    assert image["newTag"] == __version__


@pytest.mark.parametrize("name", ["lading-central", "lading-scheduler"])
def test_a_deployment_is_restricted_spread_and_never_wholly_evicted(name: str) -> None:
    deployment, spec = find("Deployment", name), pod_spec(name)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in spec["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"livenessProbe", "readinessProbe", "resources"} <= container.keys()
    assert deployment["spec"]["replicas"] == 2
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    (term,) = spec["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"]["labelSelector"]["matchLabels"] == labels
    budget = find("PodDisruptionBudget", name)["spec"]
    assert (budget["minAvailable"], budget["selector"]["matchLabels"]) == (1, labels)


# ---- central


def test_ports_and_paths_are_those_of_the_settings() -> None:
    (container,) = pod_spec("lading-central")["containers"]
    service, scraped = find("Service", "lading-central"), find("Service", "lading-central-metrics")
    addresses = (settings().page_listen, settings().metrics, settings().probes)
    listen, (page, metrics, probes) = listen_address(settings()), map(parse_address, addresses)
    assert page is not None
    assert metrics is not None
    assert probes is not None
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"extender": listen.port, PORT: page.port, "metrics": metrics.port, "probes": probes.port}
    named = [(port["name"], port["port"]) for port in service["spec"]["ports"]]
    assert named == [(announce.PORT, listen.port), (announce.PAGE_PORT, page.port)]
    assert (announce.PAGE_PORT, page.port) == (PORT, DEFAULT_PORT)
    assert [(port["targetPort"], port["port"]) for port in scraped["spec"]["ports"]] == [("metrics", metrics.port)]
    urls = {extender["urlPrefix"] for extender in scheduler_config()["extenders"]}
    assert urls == {f"https://lading-central.lading-system.svc:{listen.port}"}
    mounts = {Path(mount["mountPath"]) for mount in container["volumeMounts"]}
    files = Path(settings().signing_key), Path(settings().tls_certificate), WORKLOAD
    assert {Path(container["args"][1]), *(file.parent for file in files)} == mounts


def test_no_pod_reaches_the_ports_of_the_probes_and_the_page_and_none_reaches_another_without_being_named() -> None:
    (container,) = pod_spec("lading-central")["containers"]
    probes = [container[f"{probe}Probe"]["httpGet"]["port"] for probe in ("startup", "liveness", "readiness")]
    rules = find("NetworkPolicy", "lading-central")["spec"]["ingress"]
    assert probes == ["probes"] * 3
    assert {port["port"] for rule in rules for port in rule["ports"]} == {"extender", "metrics"}
    assert all(rule["from"] for rule in rules)


def test_a_workload_is_mounted_where_there_is_one() -> None:
    spec = pod_spec("lading-central")
    (mount,) = (mount for mount in spec["containers"][0]["volumeMounts"] if Path(mount["mountPath"]) == WORKLOAD.parent)
    (volume,) = (volume for volume in spec["volumes"] if volume["name"] == mount["name"])
    assert mount["readOnly"]
    assert volume["configMap"]["optional"]
    assert settings().workload == ""  # a file that is named and not there keeps central from starting
    docs = (DEPLOY.parent / "docs/central.md").read_text()
    assert f"create configmap {volume['configMap']['name']} --from-file={WORKLOAD.name}" in docs
    assert all(f'workload = "{WORKLOAD}"' in text for text in (docs, (DEPLOY / "central/central.toml").read_text()))


@pytest.mark.parametrize("name", ["lading-central", "lading-scheduler"])
def test_the_lease_is_the_one_that_the_role_allows(name: str) -> None:
    election = scheduler_config()["leaderElection"]
    lease = {
        "lading-central": (settings().lease_namespace, settings().lease_name),
        "lading-scheduler": (election["resourceNamespace"], election["resourceName"]),
    }[name]
    role = find("Role", name)
    (named,) = (rule["resourceNames"] for rule in role["rules"] if "resourceNames" in rule and rule["resources"] == ["leases"])
    assert lease == (role["metadata"]["namespace"], named[0])


def test_the_service_is_pointed_at_the_leader_and_selects_no_one() -> None:
    service = find("Service", settings().service)
    assert "selector" not in service["spec"]
    assert service["metadata"]["namespace"] == settings().lease_namespace
    role = find("Role", "lading-central")
    rules = [rule for rule in role["rules"] if rule["resources"] == ["endpointslices"]]
    assert [(rule.get("resourceNames"), rule["verbs"]) for rule in rules] == [
        (None, ["create"]),
        (["lading-central"], ["get", "patch"]),
    ]
    assert "POD_IP" in {env["name"] for env in pod_spec("lading-central")["containers"][0]["env"]}


def test_who_may_bind_with_an_assignment_is_centrals_account() -> None:
    account = pod_spec("lading-central")["serviceAccountName"]
    assert f"'system:serviceaccount:lading-system:{account}'" in (DEPLOY / "admission/bindings.yaml").read_text()


# ---- names


def test_the_scheduler_leaves_every_resource_to_central() -> None:
    extender, _ = scheduler_config()["extenders"]
    managed = {resource["name"] for resource in extender["managedResources"]}
    assert managed == OWN_ONLY.resources
    assert all(resource["ignoredByScheduler"] for resource in extender["managedResources"])
    assert all(extender[f"{verb}Verb"] == verb for verb in ("filter", "prioritize", "preempt", "bind"))


def test_of_all_pods_the_scheduler_asks_which_node_and_needs_no_answer() -> None:
    first, second = scheduler_config()["extenders"]
    assert second["ignorable"]
    assert "managedResources" not in second
    assert {key: verb for key, verb in second.items() if key.endswith("Verb")} == {"prioritizeVerb": "prioritize"}
    assert [second[key] for key in ("urlPrefix", "weight", "nodeCacheCapable")] == [
        first[key] for key in ("urlPrefix", "weight", "nodeCacheCapable")
    ]
    assert seconds(second["httpTimeout"]) < seconds(first["httpTimeout"])


def seconds(duration: str) -> int:
    return int(duration.removesuffix("s"))


@pytest.mark.parametrize(
    ("policy", "keys"),
    [
        ("assignments", {vocabulary.ASSIGNMENT, vocabulary.ASSIGNMENT_SIGNATURE, vocabulary.GRANT}),
        ("bindings", {vocabulary.ASSIGNMENT, vocabulary.ASSIGNMENT_SIGNATURE}),
        ("manual", {vocabulary.MANUAL_GPUS, vocabulary.MANUAL_VFS}),
        ("requests", vocabulary.REQUEST_ANNOTATIONS),
        ("quotas", {LABEL_QUOTA, LABEL_PREEMPTIBLE}),
    ],
)
def test_a_policy_knows_its_keys(policy: str, keys: set[str]) -> None:
    text = (DEPLOY / f"admission/{policy}.yaml").read_text()
    assert {key for key in keys if f"'{key}'" not in text} == set()


def test_central_takes_the_certificate_that_the_scheduler_shows() -> None:
    made = {secret["metadata"]["name"]: secret for secret in render_secrets("lading-system", days=1)}
    mounted = {name: {v["secret"]["secretName"] for v in pod_spec(name)["volumes"] if v["name"] == "tls"} for name in NAMES}
    assert mounted == {name: {f"{name}-tls"} for name in NAMES}
    assert made.keys() == {f"{name}-tls" for name in NAMES}
    for extender in scheduler_config()["extenders"]:
        assert {Path(file).name for file in extender["tlsConfig"].values()} == made["lading-scheduler-tls"]["data"].keys()
    assert settings().tls_client_names == (SCHEDULER,)


def test_the_scheduler_that_the_policy_wants_is_the_profile() -> None:
    (profile,) = scheduler_config()["profiles"]
    for policy in ("requests", "quotas"):
        assert f"['{profile['schedulerName']}']" in (DEPLOY / f"admission/{policy}.yaml").read_text()


def test_status_searches_for_every_policy() -> None:
    names = [d["metadata"]["name"] for d in documents() if d["kind"] == "ValidatingAdmissionPolicy"]
    assert set(control_checks.POLICIES) == set(names) - {"lading-networks", "lading-flavors"}


def test_every_policy_is_bound_and_denies() -> None:
    names = {d["metadata"]["name"] for d in documents() if d["kind"] == "ValidatingAdmissionPolicy"}
    bindings = [d["spec"] for d in documents() if d["kind"] == "ValidatingAdmissionPolicyBinding"]
    assert {spec["policyName"] for spec in bindings} == names
    assert all(spec["validationActions"] == ["Deny"] for spec in bindings)


def test_rights_and_policies_name_the_nodes_reports() -> None:
    plural = (nodedevices.GROUP, nodedevices.PLURAL)
    for role in ("lading-central", "lading-reporter", "lading-reader"):
        rules = find("ClusterRole", role)["rules"]
        assert plural in {(group, resource) for rule in rules for group in rule["apiGroups"] for resource in rule["resources"]}
    (rule,) = find("ValidatingAdmissionPolicy", "lading-nodedevices")["spec"]["matchConstraints"]["resourceRules"]
    assert (rule["apiGroups"], rule["resources"]) == ([nodedevices.GROUP], [nodedevices.PLURAL, f"{nodedevices.PLURAL}/status"])


# ---- networks, where Multus brings VFs into pods

NETWORKS: Final = DEPLOY / "samples/networks.yaml"


def definitions() -> list[tuple[Any, Any]]:
    """Return the definitions with their CNI configurations."""
    result = [d for d in read_file(NETWORKS) if d["kind"] == "NetworkAttachmentDefinition"]
    return [(d["metadata"], msgspec.json.decode(d["spec"]["config"])) for d in result]


def test_a_definition_is_found_by_the_setting_that_the_sample_names() -> None:
    texts = re.findall(r'cni_network = "(.*?)"', NETWORKS.read_text())
    networks = [network for text in texts if (network := parse_vf_network(text))]
    assert len(networks) == len(definitions()) == 2
    for network, (metadata, config) in zip(networks, definitions(), strict=True):
        assert metadata["namespace"] == network.namespace
        assert metadata["name"] == network.of(vocabulary.PciAddress(config.get("deviceID", "0000:00:00.0")))
        assert "annotations" not in metadata  # no resourceName: kubelet is not to be asked


def test_a_definition_takes_the_device_from_its_own_text_or_from_multus() -> None:
    (_, sriov), (_, host_device) = definitions()
    assert (sriov["type"], "deviceID" in sriov) == ("sriov", True)
    assert (host_device["type"], host_device["capabilities"], "deviceID" in host_device) == (
        "host-device",
        {"deviceID": True},
        False,
    )


def test_the_policy_is_for_the_names_of_the_definitions() -> None:
    (policy,) = (d for d in read_file(NETWORKS) if d["kind"] == "ValidatingAdmissionPolicy")
    assert f"'{vocabulary.NETWORKS}'" in policy["spec"]["variables"][1]["expression"]
    (word,) = re.findall(r"\['(.*?)', 'deviceid'", policy["spec"]["validations"][0]["expression"])
    assert all(metadata["name"].startswith(word) for metadata, _ in definitions())


# ---- samples


@pytest.mark.parametrize("pod", [d for d in documents() if d["kind"] == "Pod"], ids=lambda pod: pod["metadata"]["name"])
def test_a_sample_asks_for_what_central_understands(pod: Any) -> None:
    assert isinstance(parse_request(msgspec.convert(with_defaults(pod), Pod)), DeviceRequest)


def with_defaults(pod: Any) -> Any:
    """Return the pod as the API server hands it on: requests are limits, amounts are text."""
    for container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
        limits = {name: str(amount) for name, amount in container["resources"]["limits"].items()}
        container["resources"] = {"limits": limits, "requests": limits}
    pod["metadata"].update({"uid": "u", "namespace": "default"})
    return pod
