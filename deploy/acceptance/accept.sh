#!/usr/bin/env bash
# Verify on real NICs and GPUs what cannot be shown without them; docs/acceptance.md says what to expect of each step.
# shellcheck disable=SC2329 # steps are called by name
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
sys=${LADING_SYSFS:-/sys} # elsewhere in tests of this script
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
namespace=default
image=
gpus=8
vfs=8
at_least=0
dmabuf=
report=
save=
compare=
dry=
failed=0

usage() {
  cat <<'USAGE'
usage: accept.sh [OPTION...] STEP...

On a machine with kubectl, in this order:
  pods       two pods on two nodes, a GPU and a VF each; waits until they run
  link       each pod's VF: network device, RDMA device, verbs nodes; no other pod's can be opened
  cards      each pod's GPUs: the driver and CUDA see them; no other pod's can be opened
  bandwidth  ib_write_bw from one pod to the other, in host memory
  gpudirect  the same from GPU memory to GPU memory
  nccl       all_reduce over all GPUs of two pods of --gpus GPUs and --vfs VFs
  shares     two pods share one card, 70 : 30: memory, compute, and each alone; ends with a table
  clean      deletes the pods of this test, and waits until they are gone

On a node, as root:
  facts                prints what to report with every result
  vfs                  prints every VF as sysfs and its PF show it (--save, --compare)
  vf:BDF:KEY=VALUE...  the PF's settings of one VF are as configured; keys: mac vlan qos proto min_tx_rate max_tx_rate spoofchk
                       trust link_state, with commas between: vf:0000:3b:00.2:vlan=100,spoofchk=true
  kill                 kills lading-hooks (SIGKILL), and waits until it is ready again

options:
  -n, --namespace NAME   of the pods (default: default)
      --image IMAGE      with bash, iproute2, ib_write_bw (with CUDA), PyTorch with NCCL; pods, nccl and shares need it
      --gpus N, --vfs N  of each pod of the step nccl (default: 8 and 8)
      --at-least GBITS   bandwidth and gpudirect fail below it (default: 0, so they only report)
      --dmabuf           gpudirect registers GPU memory by dma-buf, not by nvidia_peermem
      --report FOLDER    writes every step's output there as well
      --save FILE        vfs: writes its output there
      --compare FILE     vfs: fails if something differs from a saved output
      --dry-run          prints the commands and runs none
  -h, --help
USAGE
}

die() {
  printf 'error: %s\n' "$*" >&2
  exit 2
}

# ---- commands and output

# Run a command; in a dry run only print it.
run() {
  if [[ -n $dry ]]; then
    printf '+'
    printf ' %q' "$@"
    printf '\n'
  else
    "$@"
  fi
}

# check NAME COMMAND...: run it, write its output to the report as well, and print whether it succeeded.
check() {
  local name=$1 status=0
  shift
  printf '== %s\n' "$name"
  if [[ -n $report ]]; then
    mkdir -p "$report"
    # In a condition `set -e` is off for all that is called: each step checks for errors itself.
    if "$@" 2>&1 | tee "$report/${name//[^A-Za-z0-9._-]/_}.txt"; then status=0; else status=1; fi
  elif "$@"; then
    status=0
  else
    status=1
  fi
  if [[ -n $dry ]]; then
    return 0
  elif ((status == 0)); then
    printf 'ok    %s\n' "$name"
  else
    printf 'FAIL  %s\n' "$name"
    failed=1
  fi
}

kube() {
  run kubectl -n "$namespace" "$@"
}

# in_pod POD [NAME=VALUE...]: run the script on standard input there, with these variables.
in_pod() {
  local pod=$1 script
  shift
  script=$(cat)
  kube exec "$pod" -- env "$@" bash -euo pipefail -c "$script"
}

apply() {
  local manifest
  manifest=$(sed -e "s|image: lading-acceptance|image: ${image}|" \
    -e "/of each pod of nccl/s|lading.dev/gpu: [0-9]*|lading.dev/gpu: ${gpus}|" \
    -e "/of each pod of nccl/s|lading.dev/rdma: [0-9]*|lading.dev/rdma: ${vfs}|" "$here/$1")
  if [[ -n $dry ]]; then
    printf '+ kubectl -n %q apply -f - <<EOF\n%s\nEOF\n' "$namespace" "$manifest"
  else
    kubectl -n "$namespace" apply -f - <<<"$manifest"
  fi
}

address_of() {
  if [[ -n $dry ]]; then
    printf 'ADDRESS-OF-%s' "$1"
  else
    kubectl -n "$namespace" get pod "$1" -o jsonpath='{.status.podIP}'
  fi
}

# ---- steps with kubectl

step_pods() {
  [[ -n $image ]] || die "pods: which image? (--image)"
  apply pair.yaml && kube wait --for=condition=Ready --timeout=180s pod/accept-server pod/accept-client
}

step_link() {
  local pod
  for pod in accept-server accept-client; do
    check "link $pod" link_in "$pod"
  done
}

link_in() {
  in_pod "$1" <<'IN_POD'
devices=${NCCL_IB_HCA#=}
devices=${devices//,/ }
wrong=0
number=0
for device in $devices; do
  line=$(rdma link show "$device/1")
  printf '%s\n' "$line"
  [[ $line == *"state ACTIVE"* ]] || { echo "$device: its port is not active"; wrong=1; }
  if [[ $(cat "/sys/class/infiniband/$device/ports/1/link_layer") == Ethernet ]]; then
    [[ $line == *" netdev rdma$number"* ]] || { echo "$device: its network device is not rdma$number, here"; wrong=1; }
    ip -details address show "rdma$number" || wrong=1
  fi
  number=$((number + 1))
done
((number > 0)) || { echo "NCCL_IB_HCA names no device"; wrong=1; }
given=(/dev/infiniband/uverbs*)
printf 'verbs nodes: %s\n' "${given[*]}"
((${#given[@]} == number)) || { echo "$number VFs, and ${#given[@]} verbs nodes"; wrong=1; }
[[ -c /dev/infiniband/rdma_cm ]] || { echo "no /dev/infiniband/rdma_cm"; wrong=1; }
# In shared mode sysfs shows the devices of every pod; the device cgroup isolates them.
for verbs in /sys/class/infiniband_verbs/uverbs*; do
  device=$(cat "$verbs/ibdev")
  case " $devices " in *" $device "*) continue ;; esac
  IFS=: read -r major minor <"$verbs/dev"
  rm -f /tmp/foreign
  mknod /tmp/foreign c "$major" "$minor" 2>/dev/null || { echo "$device: no node can be made"; continue; }
  if (: <>/tmp/foreign) 2>/dev/null; then echo "$device can be opened, and is not this pod's"; wrong=1; fi
  rm -f /tmp/foreign
done
exit "$wrong"
IN_POD
}

step_cards() {
  local pod
  for pod in accept-server accept-client; do
    check "cards $pod" cards_in "$pod"
  done
}

cards_in() {
  in_pod "$1" <<'IN_POD'
wrong=0
nvidia-smi -L
seen=$(nvidia-smi -L | wc -l)
cuda=$(python3 -c 'import torch; print(torch.cuda.device_count())')
nodes=$(find /dev -maxdepth 1 -name 'nvidia[0-9]*' | wc -l)
printf 'nvidia-smi %s, CUDA %s, nodes %s\n' "$seen" "$cuda" "$nodes"
[[ $seen == 1 && $cuda == 1 && $nodes == 1 ]] || { echo "this pod has one GPU"; wrong=1; }
python3 -c 'import torch; print(torch.ones(1 << 20, device="cuda").sum().item())' || wrong=1
for minor in $(seq 0 31); do
  [[ -e /dev/nvidia$minor ]] && continue
  rm -f /tmp/foreign
  mknod /tmp/foreign c 195 "$minor" 2>/dev/null || continue
  if (: <>/tmp/foreign) 2>/dev/null; then echo "/dev/nvidia$minor can be opened, and is not this pod's"; wrong=1; fi
  rm -f /tmp/foreign
done
exit "$wrong"
IN_POD
}

step_bandwidth() {
  check bandwidth write_bandwidth ""
}

step_gpudirect() {
  check gpudirect write_bandwidth "--use_cuda=0${dmabuf:+ --use_cuda_dmabuf}"
}

write_bandwidth() {
  local options=$1 server status=0 serving tool
  tool=$(
    cat <<'IN_POD'
device=${NCCL_IB_HCA#=}
device=${device%%,*}
port=/sys/class/infiniband/$device/ports/1
gid=()
if [[ $(cat "$port/link_layer") == Ethernet ]]; then
  index=
  for type in "$port"/gid_attrs/types/*; do
    [[ $(cat "$type" 2>/dev/null) == "RoCE v2" ]] || continue
    number=${type##*/}
    # Prefer a GID with an IPv4 address; else take the first.
    if [[ -z $index || $(cat "$port/gids/$number") == 0000:0000:0000:0000:0000:ffff:* ]]; then index=$number; fi
  done
  [[ -n $index ]] || { echo "$device has no RoCE v2 GID in this pod"; exit 1; }
  gid=(-x "$index")
fi
# shellcheck disable=SC2086 # several options, and perhaps no server
exec timeout 120 ib_write_bw -d "$device" -i 1 "${gid[@]}" -F -q 4 -s 1048576 -D 10 --report_gbits $OPTIONS $SERVER
IN_POD
  )
  server=$(address_of accept-server)
  in_pod accept-server OPTIONS="$options" SERVER= <<<"$tool" >"$scratch/server" 2>&1 &
  serving=$!
  [[ -n $dry ]] || sleep "${LADING_LISTENS_AFTER:-5}"
  in_pod accept-client OPTIONS="$options" SERVER="$server" <<<"$tool" >"$scratch/client" 2>&1 || status=1
  wait "$serving" || status=1
  sed 's/^/server: /' "$scratch/server"
  sed 's/^/client: /' "$scratch/client"
  [[ -n $dry ]] || at_least_of "$scratch/client" || status=1
  return "$status"
}

# The last line of numbers that ib_write_bw prints: bytes, iterations, peak, average, message rate.
at_least_of() {
  awk -v least="$at_least" '
    /^ *[0-9]+ +[0-9]+ +[0-9.]+ +[0-9.]+ +[0-9.]+/ { average = $4 }
    END {
      if (average == "") { print "no result"; exit 1 }
      print "average " average " Gbit/s"
      if (average + 0 < least + 0) { print "less than " least " Gbit/s"; exit 1 }
    }' "$1"
}

step_nccl() {
  [[ -n $image ]] || die "nccl: which image? (--image)"
  check nccl all_reduce
}

all_reduce() {
  local first rank pod status=0 log=$scratch/rank
  local -a ranks=()
  apply nccl.yaml && kube wait --for=condition=Ready --timeout=300s pod/accept-nccl-0 pod/accept-nccl-1 || return 1
  first=$(address_of accept-nccl-0)
  for rank in 0 1; do
    pod=accept-nccl-$rank
    if [[ -n $dry ]]; then
      printf '+ kubectl -n %q exec -i %q -- tee /tmp/all_reduce.py < %q\n' "$namespace" "$pod" "$here/all_reduce.py"
    else
      kubectl -n "$namespace" exec -i "$pod" -- tee /tmp/all_reduce.py <"$here/all_reduce.py" >/dev/null || return 1
    fi
    in_pod "$pod" NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET NCCL_SOCKET_IFNAME=eth0 FIRST="$first" RANK_OF_NODE="$rank" \
      CARDS="$gpus" <<'IN_POD' >"$log.$rank" 2>&1 &
printf 'given %s\n' "$NCCL_IB_HCA"
exec timeout 300 torchrun --nnodes 2 --node-rank "$RANK_OF_NODE" --nproc-per-node "$CARDS" --master-addr "$FIRST" \
  --master-port 29500 /tmp/all_reduce.py
IN_POD
    ranks+=("$!")
  done
  for rank in 0 1; do
    wait "${ranks[$rank]}" || { printf 'rank %s failed\n' "$rank"; status=1; }
    cat "$log.$rank"
    [[ -n $dry ]] || used_as_given "$log.$rank" || status=1
  done
  return "$status"
}

# NCCL logs which devices it uses: they must be exactly those of NCCL_IB_HCA.
used_as_given() {
  local given used
  given=$(sed -n 's/^given =//p' "$1" | head -n 1 | tr ',' '\n' | sort -u)
  used=$(grep -m 1 -o 'NET/IB : Using .*' "$1" | grep -oE '\[[0-9]+\][^: ]+' | sed 's/^\[[0-9]*\]//' | sort -u)
  printf 'given: %s\nused:  %s\n' "${given//$'\n'/ }" "${used//$'\n'/ }"
  [[ -n $given && $given == "$used" ]] || return 1
}

step_shares() {
  [[ -n $image ]] || die "shares: which image? (--image)"
  check shares share_card
}

share_card() {
  local status=0
  apply shares.yaml && kube wait --for=condition=Ready --timeout=180s pod/accept-seventy pod/accept-thirty || return 1
  use_share seventy memory >"$scratch/memory" || return 1
  use_share seventy work 20 >"$scratch/both.seventy" &
  use_share thirty work 20 >"$scratch/both.thirty" || status=1
  wait "$!" || status=1
  use_share seventy work 20 >"$scratch/alone.seventy" || status=1
  use_share thirty work 20 >"$scratch/alone.thirty" || status=1
  if [[ -n $dry ]]; then
    cat "$scratch/memory" "$scratch"/both.* "$scratch"/alone.*
    return 0
  fi
  table_of_shares || status=1
  return "$status"
}

# use_share POD ARGUMENT...: run share.py there, of which the standard input is the program.
use_share() {
  local pod=accept-$1
  shift
  if [[ -n $dry ]]; then
    printf '+ kubectl -n %q exec -i %q -- python3 - %s < %q\n' "$namespace" "$pod" "$*" "$here/share.py"
  else
    kubectl -n "$namespace" exec -i "$pod" -- timeout 120 python3 - "$@" <"$here/share.py"
  fi
}

# The share is 6144 MiB, of which a context and the libraries take a part.
table_of_shares() {
  sed 's/^/memory./' "$scratch/memory" >"$scratch/all"
  local when pod
  for when in both alone; do
    for pod in seventy thirty; do
      sed "s/^/$when.$pod./" "$scratch/$when.$pod" >>"$scratch/all"
    done
  done
  awk '
    { seen[$1] = $2 }
    function row(what, expected, value, right) {
      printf "%-52s %-14s %-10s %s\n", what, expected, value, right ? "ok" : "FAIL"
      if (!right) wrong = 1
    }
    END {
      share = 6144
      seventy = seen["both.seventy.products_per_s"]; thirty = seen["both.thirty.products_per_s"]
      first = seen["alone.seventy.products_per_s"]; second = seen["alone.thirty.products_per_s"]
      if (!(seventy && thirty && first && second)) { print "a pod told no result"; exit 1 }
      printf "%-52s %-14s %-10s\n", "CASE", "EXPECTED", "SEEN"
      row("memory of the card, by CUDA, MiB", share, seen["memory.cuda_total_mib"], seen["memory.cuda_total_mib"] == share)
      row("memory of the card, by nvidia-smi, MiB", share, seen["memory.nvidia_smi_mib"], seen["memory.nvidia_smi_mib"] == share)
      most = seen["memory.allocated_mib"]
      row("allocated before CUDA refuses, MiB", "5000 to " share, most, most >= 5000 && most <= share)
      part = seventy / (seventy + thirty)
      row("both at work: part of seventy", "0.65 to 0.75", sprintf("%.3f", part), part >= 0.65 && part <= 0.75)
      kept = (seventy + thirty) / first
      row("both at work: together, of what one makes alone", ">= 0.90", sprintf("%.3f", kept), kept >= 0.9)
      alone = second / first
      row("thirty alone, of what seventy makes alone", "0.90 to 1.11", sprintf("%.3f", alone), alone >= 0.9 && alone <= 1.11)
      exit wrong
    }' "$scratch/all"
}

step_clean() {
  check clean kube delete pod -l app=lading-acceptance --wait --timeout=180s
}

# ---- steps on a node

step_facts() {
  check facts facts
}

facts() {
  local pf
  run uname -r
  run containerd --version || true
  run kubelet --version || true
  run lading-hooks --version || true
  run rdma system show || true
  run nvidia-smi --query-gpu=index,name,driver_version,pci.bus_id --format=csv || true
  run nvidia-smi topo -m || true
  run cat /proc/cmdline
  run grep -E '^(nvidia_peermem|nvidia|mlx5_core|mlx5_ib|ib_core|irdma|ice|bnxt_re|bnxt_en) ' /proc/modules || true
  for pf in "$sys"/bus/pci/devices/*/sriov_numvfs; do
    [[ -e $pf ]] || continue
    pf=${pf%/*}
    printf 'PF %s driver %s VFs %s of %s\n' "${pf##*/}" "$(basename "$(readlink "$pf/driver")")" "$(cat "$pf/sriov_numvfs")" \
      "$(cat "$pf/sriov_totalvfs")"
    for name in "$pf"/net/*; do
      [[ ! -e $name ]] || run ethtool -i "${name##*/}" || true
    done
  done
}

step_vfs() {
  check vfs compare_vfs
}

compare_vfs() {
  local now
  now=$(all_vfs)
  printf '%s\n' "$now"
  if [[ -n $save ]]; then
    printf '%s\n' "$now" >"$save" || return 1
  fi
  if [[ -n $compare ]]; then
    diff -u "$compare" <(printf '%s\n' "$now") || return 1
  fi
}

# One line for each VF: PCI address, driver, RDMA device, network device with address and MTU, and its settings at the PF.
all_vfs() {
  local function pf name
  for function in "$sys"/bus/pci/devices/*; do
    [[ -e $function/physfn ]] || continue
    printf '%s driver=%s ibdev=%s' "${function##*/}" "$(basename "$(readlink "$function/driver" || echo none)")" \
      "$(names_in "$function/infiniband")"
    for name in "$function"/net/*; do
      [[ -e $name ]] || continue
      printf ' netdev=%s mac=%s mtu=%s' "${name##*/}" "$(cat "$name/address")" "$(cat "$name/mtu")"
    done
    pf=$(readlink -f "$function/physfn")
    printf ' pf=%s %s\n' "${pf##*/}" "$(vf_at_pf "$function" || echo '(its PF tells nothing)')"
  done
}

names_in() {
  if [[ -d $1 ]]; then find "$1" -mindepth 1 -maxdepth 1 -printf '%f,'; fi
}

# vf_at_pf FUNCTION: print what `ip -details link show` says about it, as JSON.
vf_at_pf() {
  local pf entry netdev index=
  pf=$(readlink -f "$1/physfn")
  for entry in "$pf"/virtfn*; do
    if [[ $(readlink -f "$entry") == "$(readlink -f "$1")" ]]; then index=${entry##*virtfn}; fi
  done
  netdev=$(names_in "$pf/net")
  [[ -n $index && -n $netdev ]] || return 1
  ip -json -details link show dev "${netdev%%,*}" | python3 -c '
import json, sys
(vf,) = [vf for vf in json.load(sys.stdin)[0].get("vfinfo_list", []) if vf["vf"] == int(sys.argv[1])]
print(json.dumps(vf, sort_keys=True))
' "$index" 2>/dev/null
}

step_vf() {
  check "vf $1" vf_as_wanted "$1" "$2"
}

vf_as_wanted() {
  local there
  there=$(vf_at_pf "$sys/bus/pci/devices/$1") || { echo "its PF tells nothing of $1"; return 1; }
  printf '%s\n' "$there"
  python3 -c '
import json, sys
vf = json.load(sys.stdin)
vlan, rate = (vf.get("vlan_list") or [vf])[0], vf.get("rate", {})
now = {
    "mac": vf.get("address", vf.get("mac")),
    "vlan": vlan.get("vlan", 0),
    "qos": vlan.get("qos", 0),
    "proto": vlan.get("protocol", "802.1Q"),
    "min_tx_rate": rate.get("min_tx", 0),
    "max_tx_rate": rate.get("max_tx", vf.get("tx_rate", 0)),
    **{key: vf.get(key, "not told") for key in ("spoofchk", "trust", "link_state")},
}
wrong = 0
for setting in sys.argv[1].split(","):
    key, _, wanted = setting.partition("=")
    if str(now.get(key, "no setting of a VF")).lower() != wanted.lower():
        print(f"{key} is {now.get(key)}, and should be {wanted}")
        wrong = 1
sys.exit(wrong)
' "$2" <<<"$there"
}

step_kill() {
  check kill kill_and_wait
}

kill_and_wait() {
  local tries
  run systemctl kill --kill-whom=main --signal=SIGKILL lading-hooks
  [[ -z $dry ]] || { echo "+ curl -sf http://127.0.0.1:9441/readyz"; return 0; }
  for ((tries = 0; tries < 60; tries++)); do
    sleep 1
    if curl -sf http://127.0.0.1:9441/readyz; then return 0; fi
  done
  echo "lading-hooks is not ready after 60 s"
  return 1
}

# ---- the command line

main() {
  local -a steps=()
  local rest step
  while (($#)); do
    case $1 in
      -h | --help) usage && exit 0 ;;
      --dmabuf) dmabuf=yes ;;
      --dry-run) dry=yes ;;
      -n | --namespace | --image | --gpus | --vfs | --at-least | --report | --save | --compare)
        (($# > 1)) || die "$1 needs a value"
        case $1 in
          -n | --namespace) namespace=$2 ;;
          --image) image=$2 ;;
          --gpus) gpus=$2 ;;
          --vfs) vfs=$2 ;;
          --at-least) at_least=$2 ;;
          --report) report=$2 ;;
          --save) save=$2 ;;
          --compare) compare=$2 ;;
        esac
        shift
        ;;
      -*) die "no option $1 (--help)" ;;
      *) steps+=("$1") ;;
    esac
    shift
  done
  ((${#steps[@]})) || { usage >&2 && exit 2; }
  [[ $gpus =~ ^[1-9][0-9]*$ && $vfs =~ ^[1-9][0-9]*$ ]] || die "--gpus and --vfs are numbers"
  [[ $image =~ ^[A-Za-z0-9./:@_-]*$ ]] || die "no image: $image"
  for step in "${steps[@]}"; do
    case $step in
      pods) check pods step_pods ;;
      link | cards | bandwidth | gpudirect | nccl | shares | clean | facts | vfs | kill) "step_$step" ;;
      vf:*=*)
        rest=${step#vf:}
        [[ $rest =~ ^([0-9a-f]+:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]):(.+)$ ]] || die "vf: as vf:0000:3b:00.2:vlan=100"
        step_vf "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}"
        ;;
      *) die "no step $step (--help)" ;;
    esac
  done
  exit "$failed"
}

main "$@"
