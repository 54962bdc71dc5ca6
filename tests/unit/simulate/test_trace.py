"""Test what is read of a trace, and what is refused: the message names the file, the line, the column and the value."""

from pathlib import Path

import pytest

from central.request.model import RdmaPolicy, Scope
from lading.errors import ConfigError
from simulate.trace import TraceNode, TracePod, read_lifetimes, read_nodes, read_pods

NODES = "sn,cpu_milli,memory_mib,gpu,model\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(text)
    return path


def test_nodes(tmp_path: Path) -> None:
    path = written(tmp_path, NODES + "a,64000,262144,2,P100\nb,8000,1024,0,\n")
    assert read_nodes(path) == (
        TraceNode(name="a", cpu_milli=64000, memory_mib=262144, gpus=2, model="P100"),
        TraceNode(name="b", cpu_milli=8000, memory_mib=1024, gpus=0, model=""),
    )


def test_columns_in_any_order_and_others_beside_them(tmp_path: Path) -> None:
    path = written(tmp_path, "model,zone,gpu,sn,memory_mib,cpu_milli\nT4,z,4,a,1,2\n")
    assert read_nodes(path) == (TraceNode(name="a", cpu_milli=2, memory_mib=1, gpus=4, model="T4"),)


def test_pods(tmp_path: Path) -> None:
    rows = ["p0,12000,16384,1,1000,,LS", "p1,6000,12288,1,460,B|A| A,LS", "p2,100,0,0,0,,", "", "p3,1,1,8,1000,,"]
    rows += ["p4,12000.0,16384,1,1000,,LS"]
    first, share, cpu, eight, again = read_pods(written(tmp_path, PODS + "\n".join(rows)))
    assert first == TracePod(cpu_milli=12000, memory_mib=16384, gpus=1, gpu_milli=1000)
    assert (share.share, share.whole, share.milli, share.models) == (460, 0, 460, ("A", "B"))
    assert (cpu.share, cpu.whole, cpu.milli) == (0, 0, 0)
    assert (eight.share, eight.whole, eight.milli) == (0, 8, 8000)
    assert again is first


def test_without_a_column_of_models(tmp_path: Path) -> None:
    (pod,) = read_pods(written(tmp_path, "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,2,1,10\n"))
    assert pod == TracePod(cpu_milli=1, memory_mib=2, gpus=1, gpu_milli=10)


def test_vfs_and_where_devices_have_to_be(tmp_path: Path) -> None:
    rows = ["1,2,2,1000,4,per-switch,socket", "1,2,0,0,2,,numa", "1,2,1,300,0,,any", "1,2,1,300,,,", "1,2,1,1000,1,nearest,"]
    switches, vfs, share, again, near = read_pods(
        written(tmp_path, "cpu_milli,memory_mib,num_gpu,gpu_milli,rdma,rdma_policy,topology\n" + "\n".join(rows))
    )
    assert switches == TracePod(
        cpu_milli=1, memory_mib=2, gpus=2, gpu_milli=1000, vfs=4, rdma_policy=RdmaPolicy.PER_SWITCH, scope=Scope.SOCKET
    )
    assert (vfs.vfs, vfs.gpus, vfs.scope, vfs.has_devices, vfs.is_somewhere) == (2, 0, Scope.NUMA, True, True)
    assert again is share == TracePod(cpu_milli=1, memory_mib=2, gpus=1, gpu_milli=300)
    assert near == TracePod(cpu_milli=1, memory_mib=2, gpus=1, gpu_milli=1000, vfs=1)


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ("1,1,1,1000,-1,,", ("rdma", "'-1'")),
        ("1,1,1,1000,1025,,", ("rdma", "1025")),
        ("1,1,1,1000,1,near,", ("rdma_policy", "'near'")),
        ("1,1,1,1000,,count,", ("rdma_policy", "'count'")),
        ("1,1,0,0,1,per-switch,", ("rdma_policy", "per-switch")),
        ("1,1,1,1000,1,per-pf,switch", ("topology", "'switch'")),
        ("1,1,1,1000,1,,rack", ("topology", "'rack'")),
        ("1,1,0,0,0,,numa", ("topology", "'numa'")),
    ],
)
def test_vfs_that_mean_nothing(tmp_path: Path, row: str, named: tuple[str, ...]) -> None:
    header = "cpu_milli,memory_mib,num_gpu,gpu_milli,rdma,rdma_policy,topology\n"
    with pytest.raises(ConfigError) as refused:
        read_pods(written(tmp_path, header + row + "\n"))
    assert all(part in str(refused.value) for part in ("line 2", *named))


@pytest.mark.parametrize(
    ("pod", "label"),
    [
        (TracePod(cpu_milli=1), "cpu only"),
        (TracePod(vfs=1), "VFs only"),
        (TracePod(gpus=1, gpu_milli=300, vfs=1), "share < 50 % + VFs"),
        (TracePod(gpus=2, gpu_milli=1000, vfs=1), "2 GPUs + VFs"),
        (TracePod(gpus=1, gpu_milli=490), "share < 50 %"),
        (TracePod(gpus=1, gpu_milli=500), "share >= 50 %"),
        (TracePod(gpus=1, gpu_milli=1000), "1 GPU"),
        (TracePod(gpus=8, gpu_milli=1000), "8 GPUs"),
    ],
)
def test_classes(pod: TracePod, label: str) -> None:
    assert pod.label == label


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ("p,x,1,1,1000,,", ("line 2", "cpu_milli", "'x'")),
        ("p,-1,1,1,1000,,", ("line 2", "cpu_milli", "'-1'")),
        ("p,1.5,1,1,1000,,", ("line 2", "cpu_milli", "'1.5'")),
        ("p,1,,1,1000,,", ("line 2", "memory_mib", "''")),
        ("p,1,99999999999,1,1000,,", ("line 2", "memory_mib", "99999999999")),
        ("p,1,²,1,1000,,", ("line 2", "memory_mib", "²")),
        ("p,1,1,1,1000,,\np,1,1,1,1001,,", ("line 3", "gpu_milli", "1001")),
        ("p,1,1,2,500,,", ("line 2", "gpu_milli", "500")),
        ("p,1,1,1,0,,", ("line 2", "gpu_milli", "0")),
        ("p,1,1,1,455,,", ("line 2", "gpu_milli", "455")),
        ('p,1,1,1,1000,"A,B",', ("line 2", "gpu_spec", "'A,B'")),
        ("p,1,1,1,1000,| |,", ("line 2", "gpu_spec", "'| |'", "A|B")),
        ("p,1,1,1", ("line 2", "4 values", "7 columns")),
    ],
)
def test_a_pod_that_cannot_be_replayed(tmp_path: Path, row: str, named: tuple[str, ...]) -> None:
    path = written(tmp_path, PODS + row + "\n")
    with pytest.raises(ConfigError) as refused:
        read_pods(path)
    assert all(part in str(refused.value) for part in (str(path), *named))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "sn"),
        ("sn,cpu_milli,memory_mib,gpu\n", "model"),
        ("sn,sn,cpu_milli,memory_mib,gpu,model\n", "sn"),
        (NODES, "no line"),
        (NODES + "a,1,1,0,\n", "GPU"),
        (NODES + "a,1,1,1,\n", "model"),
        (NODES + ",1,1,1,T4\n", "sn"),
        (NODES + "a,1,1,1,T4\na,1,1,1,T4\n", "line 3"),
        (NODES + "a,1,1,65,T4\n", "gpu = '65'"),
        (NODES + 'a,1,1,1,"T4\n', "trace.csv"),
    ],
)
def test_nodes_that_cannot_be_replayed(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_nodes(written(tmp_path, text))
    assert named in str(refused.value)


def test_a_workload_without_gpus(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        read_pods(written(tmp_path, PODS + "p,1,1,0,0,,\n"))


def test_pods_without_a_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no line"):
        read_pods(written(tmp_path, PODS + "\n"))


@pytest.mark.parametrize("there", ["missing", "folder"])
def test_no_file_to_read(tmp_path: Path, there: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError) as refused:
        read_nodes(tmp_path / there)
    assert str(refused.value).count(str(tmp_path)) == 1
    assert "Errno" not in str(refused.value)


@pytest.mark.parametrize(
    ("encoding", "node", "named"),
    [
        ("utf-16", "kitchen", "0xff in line 1"),
        ("utf-16-le", "kitchen", "0x00 in line 1"),
        ("latin-1", "k\xfcche", "0xfc in line 2"),
    ],
)
def test_another_encoding(tmp_path: Path, encoding: str, node: str, named: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(f"{NODES}{node},64000,262144,2,P100\n".encode(encoding))
    with pytest.raises(ConfigError) as refused:
        read_nodes(path)
    assert all(part in str(refused.value) for part in (str(path), "UTF-8", named))
    assert "codec" not in str(refused.value)


def test_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes((NODES + "k\xfcche,64000,262144,2,P100\n").encode("utf-8-sig"))
    assert [node.name for node in read_nodes(path)] == ["k\xfcche"]


TIMED = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time\n"
TIMES = TIMED + "a,1,1,1,1000,100,400,150\nb,1,1,1,1000,100,400,\nc,1,1,8,1000,0,70.0,0\nd,1,1,1,1000,400,100,\n"


def test_lifetimes_begin_when_a_pod_was_scheduled(tmp_path: Path) -> None:
    path = written(tmp_path, TIMES)
    assert read_lifetimes(path, read_pods(path)) == (250, 300, 70, 0)
    without = written(tmp_path, "cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time\n1,1,1,1000,5,25\n")
    assert read_lifetimes(without, read_pods(without)) == (20,)


def test_lifetimes_by_name_from_another_file(tmp_path: Path) -> None:
    """Check a missing pod, which gets the lifetimes of pods with as many GPUs in turn, or of all pods if there are none."""
    (tmp_path / "named.csv").write_text(TIMES)
    rows = ["c,1,1,8,1000", "x,1,1,1,1000", "a,1,1,1,1000", "y,1,1,1,300", "z,1,1,1,1000", "u,1,1,1,1000", "v,1,1,4,1000"]
    path = written(tmp_path, "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n" + "\n".join(rows))
    assert read_lifetimes(path, read_pods(path), tmp_path / "named.csv") == (70, 250, 250, 300, 0, 250, 250)


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ("a,1,1,1,1000,100,,100", ("line 2", "deletion_time", "''")),
        ("a,1,1,1,1000,,100,", ("line 2", "creation_time", "''")),
        ("a,1,1,1,1000,1,2,-3", ("line 2", "scheduled_time", "'-3'")),
        ("a,1,1,1,1000,1,9999999999999,", ("line 2", "deletion_time", "9999999999999")),
    ],
)
def test_times_that_mean_nothing(tmp_path: Path, row: str, named: tuple[str, ...]) -> None:
    path = written(tmp_path, TIMED + row + "\n")
    pods = read_pods(path)
    with pytest.raises(ConfigError) as refused:
        read_lifetimes(path, pods)
    assert all(part in str(refused.value) for part in (str(path), *named))


def test_columns_of_times_are_needed(tmp_path: Path) -> None:
    path = written(tmp_path, PODS + "p,1,1,1,1000,,\n")
    pods = read_pods(path)
    with pytest.raises(ConfigError, match="creation_time"):
        read_lifetimes(path, pods)
    with pytest.raises(ConfigError, match="creation_time"):
        read_lifetimes(path, pods, path)
