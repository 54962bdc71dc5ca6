#!/usr/bin/env bash
# Install Lading on a node, upgrade it, roll it back or uninstall it. `--help` says how, docs/install.md why.
#
# It must not overwrite what a person wrote, leave kubelet without a runtime, or stop half done without an error. So every file
# is written by `put`, which keeps the earlier file (for --uninstall, recorded in the manifest, and for a step that fails, in the
# journal of this run), and kubelet is changed last at installation and first at --uninstall.
set -euo pipefail
shopt -s lastpipe  # `… | put` must run in this shell, not in a subshell
umask 022

usage() {
    cat <<'HELP'
install-node.sh [--wheel FILE] [options]   install, or upgrade, on this node
install-node.sh --rollback                 return to the version before the last upgrade
install-node.sh --uninstall                return kubelet to its runtime, then remove Lading

  --wheel FILE      lading-VERSION-py3-none-any.whl, from `make wheel`
  --source DIR      build the wheel from this checkout instead (default: the checkout that contains this script)
  --image DIR       take everything, Python too, from the image lading-node, which is unpacked there, instead: for a node without
                    Python 3.11. The image itself does it: lading-hooks install-proxy
  --packages DIR    take every Python package from this folder, none from an index; without it pip uses its configuration.
                    In both cases each package must have the hash of requirements.txt, which is in the wheel.
  --config FILE     hooks.toml, runtimeproxy.toml, or central's public key as KEYID.pub.pem; may be given several times.
                    A file in /etc/lading that a person wrote or changed is not changed.
  --node-name NAME  for a new hooks.toml, and for one given without a node_name: the name that `kubectl get nodes` shows (default: the name that the running
                    kubelet uses, else the host's; required below --root, where neither is the node's)
  --report          report this node's devices to the API server, which central needs: with kubelet's own kubeconfig
  --manual          for a new hooks.toml: a test node, which accepts assignments by hand in annotations
  --no-kubelet      do not change kubelet; point it at unix:///run/lading/cri.sock yourself
  --python FILE     a Python 3.11 or newer (default: /usr/bin/python3, else the one on PATH)
  --root DIR        install below this folder, for the image of a node: nothing is started
  --force           --uninstall: also while pods hold devices
  --dry-run         print each step and change nothing
  --help

Exit status: 0 done (or nothing to do), 1 not done; the changes are undone, or the output says how to go on. 2: wrong usage.
HELP
}

readonly OPT=/opt/lading STATE=/var/lib/lading/install ETC=/etc/lading UNITS=/etc/systemd/system ON_PATH=/usr/local/sbin
readonly SOCKET=/run/lading/cri.sock DEFAULT_RUNTIME=/run/containerd/containerd.sock
readonly FLAG="--container-runtime-endpoint=unix://$SOCKET"
readonly SOCKET_UNITS=(lading-hooks.socket lading-runtimeproxy.socket)
readonly SERVICE_UNITS=(lading-hooks.service lading-runtimeproxy.service)
# lading-hooks.service wants them: they are neither enabled nor restarted separately.
readonly BOOT_UNITS=(lading-nvidia-uvm.service lading-ib-guids.service)
# Enabled by a person: on nodes with the isolation tokens (docs/isolation.md), and with the front end NRI (docs/nri.md). A restart of
# either disturbs no container.
readonly OPTIONAL_UNITS=(lading-shares.service lading-nri-guard.service)
readonly COMMANDS=(lading-hooks lading-runtimeproxy lading-shares lading-doctor lading-central kubectl-lading kubectl_complete-lading)
readonly REGISTRATION=$ETC/hooks.d/50-lading.json
readonly KUBECONFIG_OF_KUBELET=/etc/kubernetes/kubelet.conf
readonly NEED_MIB=800  # a version is 350 MiB, and an upgrade has two
readonly PACKAGES=opt/lading/lib  # of the image: its packages, and where its Python is
readonly READY_S=60 KUBELET_S=30

verb=install wheel='' source='' image='' packages='' node_name='' python='' R='' step=''
manual=no report=no kubelet=yes force=no dry=no
configs=()

# ---- output, and commands

say() { printf '%s\n' "$*"; }
finish() {
    local but=''
    [ "$problems" = 0 ] || but="; fix these problems first, see above: $problems"
    if [ "$dry" = yes ]; then say "==> dry run: nothing is changed$but"; else say "==> done: $1"; fi
}
begin() { step=$1; say "==> $1"; }
note() { say "    $*"; }
die() {
    printf 'error: cannot %s: %s\n' "${step:-$verb}" "$1" >&2
    [ -z "${2:-}" ] || printf 'hint:  %s\n' "$2" >&2
    exit 1
}
misuse() { printf 'error: %s\nhint:  install-node.sh --help\n' "$1" >&2; exit 2; }
# Print a command that changes something, and run it unless this is a dry run.
run() {
    note "$*"
    [ "$dry" = yes ] || "$@"
}
live() { [ -z "$R" ]; }
service() { if live; then run systemctl "$@"; fi; }
units() { run systemctl ${R:+--root="$R"} --quiet "$1" "${SOCKET_UNITS[@]}" "${SERVICE_UNITS[@]}"; }  # enable, disable

# ---- files: the manifest has every written file and created folder (part, checksum, mode, kept original, path); the journal has
# what this run changes

scratch=$(mktemp -d)
journal=0 changed=''
sum() { sha256sum <"$1" | cut -d' ' -f1; }
field() { [ -f "$R$STATE/manifest" ] && awk -F'\t' -v path="$1" -v n="$2" '$5 == path { print $n; found = 1 } END { exit !found }' "$R$STATE/manifest"; }
paths_of() { [ ! -f "$R$STATE/manifest" ] || awk -F'\t' -v part="$1" '$1 == part { print $5 }' "$R$STATE/manifest"; }
forget() { awk -F'\t' -v path="$1" '$5 != path' "$R$STATE/manifest" >"$scratch/manifest" && cp "$scratch/manifest" "$R$STATE/manifest"; }
is_ours() { [ "$(field "$1" 2)" = "$(sum "$R$1")" ]; }

make_folder() { # a folder that existed before is not recorded, so that it is not removed later
    [ ! -d "$R$1" ] || return 0
    make_folder "$(dirname "$1")"
    remember "$1"
    mkdir "$R$1"
    printf 'folder\t-\t-\t-\t%s\n' "$1" >>"$R$STATE/manifest"
}
drop_folders() { # remove the recorded folders that are empty
    local path
    for path in $(paths_of folder | sort -r); do rmdir "$R$path" 2>/dev/null || true; done
}

remember() { # record for undo a file or link as it is now, or that none exists
    journal=$((journal + 1))
    printf '%s\n' "$1" >"$scratch/$journal.path"
    if [ -e "$R$1" ] || [ -L "$R$1" ]; then cp -pP "$R$1" "$scratch/$journal.was"; fi
}

# put PART PATH MODE <content: write the file, unless a person changed it since it was written.
put() {
    local part=$1 path=$2 mode=$3 new="$scratch/new" kept
    cat >"$new"
    if kept=$(field "$path" 4); then
        if [ -e "$R$path" ] && cmp -s "$new" "$R$path"; then return 0; fi
        if [ -e "$R$path" ] && ! is_ours "$path"; then
            note "not changed: $path was edited since it was installed; the new file is $path.new"
            [ "$dry" = yes ] || cp "$new" "$R$path.new"
            return 0
        fi
    elif [ -e "$R$path" ]; then
        kept=${path//\//%}
    else
        kept=-
    fi
    changed="$changed $path"
    note "write $path$([ "$kept" = - ] || printf ' (the earlier file is kept)')"
    [ "$dry" = no ] || return 0
    if [ "$kept" != - ] && [ ! -e "$R$STATE/kept/$kept" ]; then
        mkdir -p "$R$STATE/kept"
        cp -p "$R$path" "$R$STATE/kept/$kept"
    fi
    make_folder "$(dirname "$path")"
    remember "$path"
    install -m "$mode" "$new" "$R$path.lading-part"
    mv -T "$R$path.lading-part" "$R$path"
    [ ! -f "$R$STATE/manifest" ] || forget "$path"
    printf '%s\t%s\t%s\t%s\t%s\n' "$part" "$(sum "$R$path")" "$mode" "$kept" "$path" >>"$R$STATE/manifest"
}

# put, but never overwrite a person's file: one that this script did not write, or that was changed since.
offer() {
    if [ -e "$R$2" ] && ! { field "$2" 2 >/dev/null && is_ours "$2"; }; then
        if cmp -s - "$R$2"; then return 0; fi
        note "not changed: $2 is yours, and differs from the file given with --config"
    else
        put "$@"
    fi
}

is_made_anew() { # whether this is the registration, rewritten by `lading-hooks registration`, as lading-doctor advises
    [ "$1" = "$REGISTRATION" ] && as_version "$(current)" hooks registration --config "$R$ETC/hooks.toml" 2>/dev/null | cmp -s - "$R$1"
}

# Restore the file from before the installation. A file that a person changed since stays, and the earlier one is put beside it.
restore() {
    local path=$1 kept
    kept=$(field "$path" 4)
    if [ -e "$R$path" ] && { is_ours "$path" || is_made_anew "$path"; }; then
        if [ "$kept" = - ]; then run rm -- "$R$path"; else run mv -T -- "$R$STATE/kept/$kept" "$R$path"; fi
    elif [ -e "$R$path" ] || [ "$kept" != - ]; then
        note "not changed: $path was edited since it was installed"
        [ "$kept" = - ] || run mv -T -- "$R$STATE/kept/$kept" "$R$path.before-lading"
    fi
    [ "$dry" = yes ] || forget "$path"
}

link() { # atomically
    [ "$(readlink "$R$2" || true)" != "$1" ] || return 0
    note "$2 -> $1"
    [ "$dry" = no ] || return 0
    remember "$2"
    ln -sfnT "$1" "$R$2.lading-part" && mv -T "$R$2.lading-part" "$R$2"
}

# ---- a step that fails

first=no was='' made='' restarted='' committed=yes
undo() {
    local status=$? number path
    trap - EXIT ERR INT TERM
    if [ "$status" -ne 0 ] && [ "$committed" = no ]; then
        set +e
        printf 'undoing the changes, because this step failed: %s\n' "$step" >&2
        for ((number = journal; number > 0; number--)); do undo_file "$number" kubelet; done
        if live; then
            systemctl daemon-reload
            case $restarted in *kubelet*) systemctl restart kubelet.service ;; esac
            [ "$first" = no ] || systemctl --quiet stop "${SERVICE_UNITS[@]}" "${SOCKET_UNITS[@]}" 2>/dev/null
        fi
        [ "$first" = no ] || units disable >/dev/null 2>&1
        if [ "$first" = yes ] && [ -n "$made" ]; then rm -rf "$R${made:?}"; fi  # so that its parent folder is empty
        for ((number = journal; number > 0; number--)); do undo_file "$number" ''; done
        if live; then
            systemctl daemon-reload
            [ "$first" = yes ] || [ -z "$switched$changed" ] || systemctl restart "${SERVICE_UNITS[@]}"
            systemctl --quiet try-restart "${OPTIONAL_UNITS[@]}" 2>/dev/null
        fi
        [ -z "$made" ] || rm -rf "$R${made:?}"
        if [ "$first" = yes ]; then rm -rf "$R${STATE:?}"; fi
        printf 'error: nothing is changed: %s\n' "$([ "$first" = yes ] && echo 'Lading is not installed' || echo "${was#versions/} is in force, as before")" >&2
    fi
    rm -rf "$scratch"
    exit "$status"
}
undo_file() {
    local path
    [ -f "$scratch/$1.path" ] || return 0
    path=$(cat "$scratch/$1.path")
    case $path in *kubelet*) ;; *) [ -z "$2" ] || return 0 ;; esac
    if [ -d "$R$path" ] && [ ! -L "$R$path" ]; then rmdir "$R$path" 2>/dev/null; else rm -f "$R$path"; fi
    if [ -e "$scratch/$1.was" ] || [ -L "$scratch/$1.was" ]; then cp -pP "$scratch/$1.was" "$R$path"; fi
    rm "$scratch/$1.path"
}
trap undo EXIT
trap 'exit 130' INT TERM

# ---- kubelet: its command line, and its endpoint

kubelet_unit() { # print its file and drop-ins, in the order in which systemd reads them
    local folder file
    if live; then
        SYSTEMD_COLORS=0 systemctl cat kubelet.service 2>/dev/null || true
        return 0
    fi
    local folders=("$R"/{etc,usr/local/lib,usr/lib,lib}/systemd/system)
    for folder in "${folders[@]}"; do
        if [ -f "$folder/kubelet.service" ]; then
            cat "$folder/kubelet.service"
            break
        fi
    done
    for file in $(find "${folders[@]/%//kubelet.service.d}" -maxdepth 1 -name '*.conf' -printf '%f\t%p\n' 2>/dev/null | sort | cut -f2); do
        printf '# %s\n' "${file#"$R"}" && cat "$file"
    done
}
exec_start() { # print the last ExecStart= after a reset, of its unit and drop-ins, with continuation lines joined
    kubelet_unit | awk '
        { while (sub(/\\$/, "")) { if ((getline more) <= 0) break; $0 = $0 more } }
        /^ExecStart=/ { line = substr($0, 11); gsub(/[ \t]+/, " ", line); if (line == "") last = ""; else last = line }
        END { print last }'
}
extra_args_file() { # print the environment file that sets KUBELET_EXTRA_ARGS: it overrides Environment=
    local file found=''
    for file in $(kubelet_unit | sed -n 's/^EnvironmentFile=-\{0,1\}//p'); do
        if [ -f "$R$file" ] && grep -q '^KUBELET_EXTRA_ARGS=' "$R$file"; then found=$file; fi
    done
    printf '%s' "$found"
}
extra_args_of_units() { # print KUBELET_EXTRA_ARGS of other drop-ins, which must be kept
    kubelet_unit | awk '/^# \// { ours = /10-lading\.conf$/ } !ours' |
        sed -n 's/^Environment="\{0,1\}KUBELET_EXTRA_ARGS=\(.*[^"]\)"\{0,1\}$/\1/p' | tail -n 1
}
with_flag() { # print a list of arguments with Lading's endpoint instead of another one
    local args
    args=$(sed -E 's/--container-runtime-endpoint(=| +)[^ ]+//g; s/ +/ /g; s/^ //; s/ $//' <<<"$1")
    printf '%s' "${args:+$args }$FLAG"
}
kubelet_command() { # print the command line of the running kubelet, one argument per line
    local pid
    live && pid=$(systemctl show --value --property=MainPID kubelet.service 2>/dev/null) || return 1
    [ -n "$pid" ] && [ "$pid" != 0 ] && tr '\0' '\n' <"/proc/$pid/cmdline"
}
kubelet_node_name() { # print the --hostname-override of the running kubelet, or nothing
    { kubelet_command || true; } | awk 'next_is { name = $0; next_is = 0 } /^--hostname-override=/ { name = substr($0, 21) }
        /^--hostname-override$/ { next_is = 1 } END { print name }'
}
kubelet_endpoint() { # print the endpoint of the running kubelet: from its flag, its configuration file, or the default
    local command file found
    command=$(kubelet_command) || return 1
    found=$(awk 'next_is { last = $0; next_is = 0 } /^--container-runtime-endpoint=/ { last = substr($0, 30) }
        /^--container-runtime-endpoint$/ { next_is = 1 } END { print last }' <<<"$command")
    file=$(sed -n 's/^--config=//p' <<<"$command" | tail -n 1)
    if [ -z "$found" ] && [ -f "$file" ]; then
        found=$(sed -n 's/^containerRuntimeEndpoint: *"\{0,1\}\([^" ]*\).*/\1/p' "$file")
    fi
    printf '%s' "${found:-unix://$DEFAULT_RUNTIME}"
}

point_kubelet() {
    local file args line
    file=$(extra_args_file)
    case $(exec_start) in
    *KUBELET_EXTRA_ARGS*)
        if [ -n "$file" ]; then
            line=$(grep '^KUBELET_EXTRA_ARGS=' "$R$file" | tail -n 1)
            args=${line#KUBELET_EXTRA_ARGS=}
            case $args in
            *\\ | *\"*\"*\"* | *\'*\"* | *\"*\'*) die "KUBELET_EXTRA_ARGS in $file is more than one quoted text" \
                "add $FLAG there, restart kubelet, and run this again with --no-kubelet" ;;
            esac
            args=$(with_flag "$(sed -E "s/^['\"](.*)['\"] *$/\1/" <<<"$args")")
            awk -v new="KUBELET_EXTRA_ARGS=\"$args\"" '{ lines[NR] = $0; if (/^KUBELET_EXTRA_ARGS=/) at = NR }
                END { for (n = 1; n <= NR; n++) print n == at ? new : lines[n] }' "$R$file" |
                put kubelet "$file" "$(stat -c %a "$R$file")"
            drop_in  # for the order
        else
            drop_in "Environment=\"KUBELET_EXTRA_ARGS=$(with_flag "$(extra_args_of_units)")\""
        fi
        ;;
    *) drop_in "ExecStart=" "ExecStart=$(with_flag "$(exec_start_of_others)")" ;;
    esac
}
exec_start_of_others() { # print the ExecStart= without Lading's drop-in, which repeats it
    if [ -e "$R$UNITS/kubelet.service.d/10-lading.conf" ]; then exec_start | sed "s| $FLAG||"; else exec_start; fi
}
drop_in() {
    { printf '[Unit]\nWants=%s\nAfter=%s\n' "${SOCKET_UNITS[*]}" "${SOCKET_UNITS[*]}"; [ $# = 0 ] || printf '%s\n' '' '[Service]' "$@"; } |
        put kubelet "$UNITS/kubelet.service.d/10-lading.conf" 644
}

restart_kubelet() { # restart_kubelet yes|no: restart it and check that it runs, with Lading's endpoint or without
    if ! kubelet_command >/dev/null; then
        note "kubelet does not run: it uses the endpoint when it is started"
        return 0
    fi
    restarted="$restarted kubelet"
    service restart kubelet.service
    [ "$dry" = no ] || return 0
    local look endpoint='' well=0 wrong=0 through
    for ((look = 0; look < KUBELET_S && well < 3 && wrong < 3; look++)); do  # three times: a kubelet that fails at once must not count
        sleep 1
        endpoint=$(kubelet_endpoint) || endpoint=''
        through=$([ "$endpoint" = "unix://$SOCKET" ] && echo yes || echo no)
        if [ -z "$endpoint" ]; then
            well=0 wrong=0
        elif [ "$through" = "$1" ]; then
            well=$((well + 1)) wrong=0
        else
            well=0 wrong=$((wrong + 1))
        fi
    done
    [ "$well" -lt 3 ] || return 0
    if [ "$1" = no ] && [ -n "$endpoint" ]; then
        die "kubelet still runs with $endpoint" "remove that from the files that systemctl cat kubelet shows, restart it, and run this again"
    fi
    die "kubelet does not run, or runs with ${endpoint:-no endpoint}" "systemctl cat kubelet; journalctl -u kubelet -n 50"
}

# ---- before anything is changed

problems=0
problem() {
    problems=$((problems + 1))
    printf 'problem: %s\n' "$1" >&2
    [ -z "${2:-}" ] || printf 'hint:    %s\n' "$2" >&2
}
find_python() {
    local name
    for name in ${python:-/usr/bin/python3 python3 python3.11 python3.12 python3.13 python3.14}; do
        name=$(command -v "$name") || continue
        if "$name" -I -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            printf '%s' "$name"
            return 0
        fi
    done
    return 1
}
free_mib() { # print the free space where a path will be, in MiB
    local path=$1
    while [ ! -d "$path" ]; do path=$(dirname "$path"); done
    df -Pm "$path" | awk 'NR == 2 { print $4 }'
}

kubelet_runtime=''  # kubelet's endpoint before the installation, without unix://
configured_runtime() { # print the runtime_endpoint of a file given with --config, or of the installed one
    local file found=''
    for file in "$R$ETC/runtimeproxy.toml" ${configs[@]+"${configs[@]}"}; do
        case $file in */runtimeproxy.toml | runtimeproxy.toml) ;; *) continue ;; esac
        if [ -r "$file" ]; then found=$(sed -n 's/^runtime_endpoint *= *"\(unix:\/\/\)\{0,1\}\([^"]*\)".*/\2/p' "$file"); fi
    done
    printf '%s' "$found"
}
preflight() {
    local runtime
    begin "check this node"
    if live; then
        [ "$(id -u)" = 0 ] || problem "this is not root" "sudo $0 …"
        [ -d /run/systemd/system ] || problem "systemd does not run this machine" "--root DIR prepares the image of a node"
    fi
    command -v systemctl >/dev/null || problem "there is no systemctl"
    if [ -d "$R$OPT/bin" ] && [ ! -L "$R$OPT/bin" ]; then
        problem "$OPT is a virtual environment that this script did not create" "mv $OPT $OPT.by-hand, and run this again"
    fi
    if [ -n "$image" ]; then
        note "Python: the image's"
    elif python=$(find_python); then
        case $(readlink -f "$python") in
        /root/* | /home/*) problem "$(readlink -f "$python") is in a home folder, which the units hide from the daemons" \
            "--python FILE, for instance /usr/bin/python3" ;;
        *) note "Python: $python" ;;
        esac
    else
        problem "there is no Python 3.11 or newer with venv" "Debian: apt-get install python3 python3-venv; or --python FILE"
    fi
    [ "$(free_mib "$R$OPT")" -ge $NEED_MIB ] || problem "less than $NEED_MIB MiB are free for $OPT"
    [ "$(free_mib "$R$STATE")" -ge 64 ] || problem "less than 64 MiB are free for $STATE"
    if [ "$kubelet" = yes ]; then look_at_kubelet; fi
    runtime=$(configured_runtime)
    runtime=${kubelet_runtime:-${runtime:-$DEFAULT_RUNTIME}}
    if live && [ ! -S "$runtime" ]; then problem "there is no container runtime at $runtime" "systemctl status containerd"; fi
    look_at_configuration
    look_at_api_server
    [ "$problems" = 0 ] || [ "$dry" = yes ] || die "$problems problem(s), see above; nothing is changed"
}
look_at_kubelet() {
    local endpoint
    if [ -z "$(exec_start)" ]; then
        problem "there is no kubelet.service" "where K3s or RKE2 runs kubelet: --no-kubelet; lading-doctor says what to set there"
    elif endpoint=$(kubelet_endpoint); then
        note "kubelet: runs with $endpoint"
        case $endpoint in
        "unix://$SOCKET" | "$SOCKET") ;;
        *) kubelet_runtime=${endpoint#unix://} ;;
        esac
    else
        note "kubelet: does not run"
    fi
}
look_at_configuration() {
    local file keys=no
    for file in ${configs[@]+"${configs[@]}"}; do
        [ -r "$file" ] || problem "cannot read $file"
        case $(basename "$file") in
        hooks.toml) manual=given ;;
        runtimeproxy.toml) ;;
        *.pub.pem) keys=yes ;;
        *) problem "$file is not hooks.toml, runtimeproxy.toml or KEYID.pub.pem" ;;
        esac
    done
    if [ ! -e "$R$ETC/hooks.toml" ] && [ "$manual" = no ] && [ "$keys" = no ]; then
        problem "there is no $ETC/hooks.toml, and no options to create it" \
            "--config KEYID.pub.pem (central's public key) and --node-name; or --config hooks.toml; or --manual, for a test node"
    elif ! live && [ ! -e "$R$ETC/hooks.toml" ] && [ "$manual" != given ] && [ -z "$node_name" ]; then
        problem "the new hooks.toml needs the node's name, which is not this machine's" "--node-name NAME, as kubectl get nodes shows it"
    fi
}

# ---- a version: a separate virtual environment or a copy of the image's, so that the version before stays usable

version_of() { # print the version of a wheel or an image: of its name and its content, because a checkout makes many with one name
    local name content=$wheel
    if [ -n "$image" ]; then
        name=$(echo "$image/$PACKAGES"/python3*/site-packages/lading-*.dist-info)
        content="$scratch/content"
        (cd "$image" && find opt/lading usr/bin usr/lib -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum) >"$content"
    else
        name=$wheel
    fi
    name=$(basename "$name" .dist-info)
    name=${name#lading-}
    printf '%s-%s' "${name%%-*}" "$(sum "$content" | cut -c1-8)"
}
look_at_image() { # find the image's Python and its loader, in the folder of its libraries
    [ -n "$image" ] || return 0
    image_python=$(basename "$(readlink "$image/usr/bin/python3")") || true
    loader=$(cd "$image/usr/lib" && find . -mindepth 2 -maxdepth 2 -type f -name 'ld-linux-*.so.*') || true
    loader=${loader#./}
    [ -x "$image/usr/lib/$loader" ] && [ -d "$image/$PACKAGES/$image_python" ] || misuse "$image does not have the image lading-node"
}
any_python() { # start the Python that the installation uses
    if [ -z "$image" ]; then
        "$python" "$@"
    else
        "$image/usr/lib/$loader" --inhibit-cache --library-path "$image/usr/lib/${loader%/*}" "$image/usr/bin/$image_python" "$@"
    fi
}
copy_image() { # copy_image FOLDER: what is in /usr and /opt/lading of the image, as one environment that can be anywhere
    local to="$R$1" name copy=(cp -R --preserve=mode,timestamps,links)
    mkdir "$to" "$to/bin"
    "${copy[@]}" "$image/opt/lading/lib" "$image/opt/lading/share" "$to"
    "${copy[@]}" "$image/usr/lib/$image_python" "$image/usr/lib/${loader%/*}" "$to/lib"
    "${copy[@]}" "$image/usr/bin/$image_python" "$to/bin"
    find "$to" -type l -lname '/*' -delete  # they would lead into the node's folders
    mkdir "$to/lib/python3"
    ln -s "../$image_python/site-packages" "$to/lib/python3/dist-packages"  # where Debian's Python looks outside of an environment
    # With the loader and the libraries of the image: the node's may be older.
    cat >"$to/bin/python" <<LAUNCHER
#!/bin/sh
v=\$(cd -P "\${0%/*}/.." && pwd)
exec "\$v/lib/$loader" --inhibit-cache --library-path "\$v/lib/${loader%/*}" --argv0 "\$v/bin/python" "\$v/bin/$image_python" "\$@"
LAUNCHER
    chmod 755 "$to/bin/python"
    for name in "${COMMANDS[@]}"; do
        sed "1s|^#!.*|#!$1/bin/python|" "$image/opt/lading/bin/$name" >"$to/bin/$name"
        chmod 755 "$to/bin/$name"
    done
}
build_wheel() {
    [ -n "$source" ] || return 0
    begin "build a wheel of $source"
    "$python" -m venv "$scratch/build"
    mkdir "$scratch/wheel"
    [ -z "$packages" ] || export PIP_NO_INDEX=1 PIP_FIND_LINKS="$packages"
    wheel=$("$scratch/build/bin/python" "$source/deploy/wheel.py" --source "$source" --out "$scratch/wheel")
    note "$(basename "$wheel")"
}
pip() {
    local venv=$1
    shift
    "$venv/bin/python" -m pip --disable-pip-version-check --quiet install "$@" ${packages:+--no-index --find-links "$packages"}
}
make_version() {
    local venv="$OPT/versions/$1"
    begin "make $venv"
    if [ -e "$R$venv/complete" ] && as_version "$1" hooks --version >/dev/null 2>&1; then  # fails if Python was upgraded
        note "exists already"
        return 0
    fi
    if [ "$dry" = yes ]; then
        if [ -n "$image" ]; then
            note "copy Python, its libraries and packages out of the image"
        else
            note "$python -m venv; pip install $(basename "$wheel"), and requirements.txt with hashes"
        fi
        return 0
    fi
    made=$venv
    rm -rf "$R${venv:?}"
    make_folder "$OPT/versions"
    if [ -n "$image" ]; then copy_image "$venv"; else make_environment "$venv"; fi
    for module in hooks runtimeproxy; do note "$(as_version "$1" "$module" --version)"; done
    touch "$R$venv/complete"
}
make_environment() {
    "$python" -m venv "$R$1"
    pip "$R$1" --no-deps "$wheel"
    pip "$R$1" --require-hashes -r "$R$1/share/lading/requirements.txt"
    # Below --root every path in it must be the node's.
    [ -z "$R" ] || grep -lIr "$R$1" "$R$1/bin" "$R$1/pyvenv.cfg" | xargs -r sed -i "s|$R$1|$1|g"
}
as_version() { # as_version VERSION MODULE ARGUMENT…: run a command of that version
    local venv="$R$OPT/versions/$1" module=$2
    shift 2
    "$venv/bin/python" -I -m "$module.main" "$@"
}

# ---- configuration, units, and the two daemons

write_configuration() {
    local file name id lines='' other=no
    case $kubelet_runtime in '' | "$DEFAULT_RUNTIME") ;; *) other=yes ;; esac
    begin "write the configuration in $ETC"
    for file in ${configs[@]+"${configs[@]}"}; do
        name=$(basename "$file")
        case $name in
        *.pub.pem)
            id=${name%.pub.pem}
            offer config "$ETC/keys/$name" 644 <"$file"
            lines="$lines\"$id\" = \"$ETC/keys/$name\""$'\n'
            ;;
        hooks.toml) with_node_name "$file" | offer config "$ETC/$name" 644 ;;
        *) offer config "$ETC/$name" 644 <"$file" ;;
        esac
    done
    if [ ! -e "$R$ETC/hooks.toml" ] && [ "$manual" != given ]; then
        {
            printf '# Written by install-node.sh. Change it as you like: it is not overwritten. lading-hooks --print-config shows all.\n'
            [ -n "$node_name" ] || node_name=$(kubelet_node_name)
            printf 'node_name = "%s"\n' "${node_name:-$(uname -n | tr '[:upper:]' '[:lower:]')}"
            [ "$manual" = no ] || printf 'assignments = ["manual"]\n'
            [ "$report" = no ] || printf 'report = true\nkubeconfig = "%s"\n' $KUBECONFIG_OF_KUBELET
            [ "$other" = no ] || printf 'runtime_endpoint = "%s"\n' "$kubelet_runtime"
            [ -z "$lines" ] || printf '\n[keys]\n%s' "$lines"
        } | put config "$ETC/hooks.toml" 644
    fi
    if [ ! -e "$R$ETC/runtimeproxy.toml" ] && [ "$other" = yes ]; then
        printf 'runtime_endpoint = "%s"\n' "$kubelet_runtime" | put config "$ETC/runtimeproxy.toml" 644
    fi
    if [ "$report" = yes ]; then
        { printf '[Service]\n' && cat "$scratch/addresses"; } | put unit "$UNITS/lading-hooks.service.d/10-report.conf" 644
    fi
    check_configuration "$1"
}
with_node_name() { # print a hooks.toml, which may be that of all nodes, with the name that was given
    [ -z "$node_name" ] || grep -q '^node_name *=' "$1" || printf 'node_name = "%s"\n' "$node_name"
    cat "$1"
}
look_at_api_server() { # print its addresses, and the resolver's if it has a name: the unit allows only these
    [ "$report" = yes ] || return 0
    any_python -I - "$R$KUBECONFIG_OF_KUBELET" "$R/etc/resolv.conf" >"$scratch/addresses" <<'PYTHON' || \
        problem "cannot find the API server's address" "install without --report; docs/operations.md, \"Report to central\""
import ipaddress, re, socket, sys, urllib.parse
try:
    named = re.findall(r"""(?:^|[\s{,])["']?server["']?:\s*["']?([^\s"',}]+)""", open(sys.argv[1]).read())  # YAML, or JSON
    host = urllib.parse.urlsplit(named[0]).hostname if named else sys.exit(f"{sys.argv[1]} names no server")
    try:
        found = {str(ipaddress.ip_address(host))}
    except ValueError:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None)}
        found |= set(re.findall(r"^nameserver\s+([^\s%]+)", open(sys.argv[2]).read(), re.MULTILINE))
except OSError as e:
    sys.exit(f"{e.filename or host}: {e.strerror}")
print("".join(f"IPAddressAllow={address}\n" for address in sorted(found)), end="")
PYTHON
}
check_configuration() {
    local module file runtime
    if [ "$dry" = yes ] || ! live; then
        note "lading-hooks --check-config; lading-runtimeproxy --check-config$(live || echo '   (not below --root)')"
        return 0
    fi
    for module in hooks runtimeproxy; do
        file=$ETC/$module.toml
        as_version "$1" $module --check-config >/dev/null || die "$file is not valid for this version" "correct it and run this again"
        runtime=$(setting "$1" $module runtime_endpoint)
        if [ -n "$kubelet_runtime" ] && [ "${runtime#unix://}" != "$kubelet_runtime" ]; then
            die "kubelet's runtime is $kubelet_runtime, and $file says $runtime" "in that file: runtime_endpoint = \"$kubelet_runtime\""
        fi
    done
}
setting() { as_version "$1" "$2" --print-config | sed -n "s/^$3 = \"\(.*\)\".*/\1/p"; }

is_in_every_version() { [[ " ${BOOT_UNITS[*]} ${OPTIONAL_UNITS[*]} " != *" $1 "* ]]; }
write_units() {
    local name shared="$R$OPT/versions/$1/share/lading/systemd"
    begin "write the units in $UNITS"
    for name in "${SOCKET_UNITS[@]}" "${SERVICE_UNITS[@]}" "${BOOT_UNITS[@]}" "${OPTIONAL_UNITS[@]}"; do
        if [ "$dry" = yes ]; then
            note "write $UNITS/$name"
        elif [ -e "$shared/$name" ] || is_in_every_version "$name"; then # --rollback
            put unit "$UNITS/$name" 644 <"$shared/$name"
        fi
    done
}
write_registration() {
    begin "register lading-hooks with the proxy"
    if [ "$dry" = yes ]; then
        note "write $REGISTRATION"
        return 0
    fi
    as_version "$1" hooks registration --config "$R$ETC/hooks.toml" >"$scratch/registration"
    put config "$REGISTRATION" 644 <"$scratch/registration"
}

start_or_restart() { # start a daemon, or restart it if its version, unit or configuration changed; wait until it is ready
    local module=$1 unit="lading-$1.service" file=''
    case "$switched$changed" in *switched* | *$unit* | *"$ETC/$module.toml"* | *"$ETC/keys/"*) file=changed ;; esac
    if [ -n "$file" ] && [ "$first" = no ]; then service restart "$unit"; else service start "$unit"; fi
    [ "$dry" = no ] && live || return 0
    local address
    address=$(setting "$(current)" "$module" metrics)
    [ -n "$address" ] || { note "$unit runs; it has no metrics address to ask whether it is ready"; return 0; }
    "$R$OPT/bin/python" -I - "http://$address/readyz" $READY_S <<'PYTHON' || die "$unit is not ready after $READY_S s" "journalctl -u $unit -n 50"
import sys, time, urllib.error, urllib.request
url, end, said = sys.argv[1], time.monotonic() + float(sys.argv[2]), ""
while time.monotonic() < end:
    try:
        with urllib.request.urlopen(url, timeout=5):
            sys.exit(0)
    except urllib.error.HTTPError as e:
        said = e.read().decode(errors="replace")
    except OSError as e:
        said = str(e)
    time.sleep(0.2)
sys.exit(f"{url}: {said}")
PYTHON
    note "$unit is ready"
}
switched=''
current() { local at; at=$(readlink "$R$OPT/current" || true); printf '%s' "${at#versions/}"; }

# Link the commands into a folder on PATH, because pages and messages use their short names.
put_on_path() {
    local name at
    [ "$dry" = yes ] || make_folder "$ON_PATH"
    for name in "${COMMANDS[@]}"; do
        at=$ON_PATH/$name
        if { [ -e "$R$at" ] || [ -L "$R$at" ]; } && ! leads_to_us "$at"; then
            note "not changed: $at is yours; Lading's is $OPT/bin/$name"
        else
            link "$OPT/bin/$name" "$at"
        fi
    done
}
leads_to_us() { [ "$(readlink "$R$1" || true)" = "$OPT/bin/$(basename "$1")" ]; }

# `bin` stays, because the units name it. It leads to the version that `current` leads to.
switch_to() {
    begin "switch to version $1"
    [ "$(current)" = "$1" ] || switched=switched
    if [ "$switched" ] && [ -n "$(current)" ]; then link "versions/$(current)" "$OPT/previous"; fi
    link "versions/$1" "$OPT/current"
    link current/bin "$OPT/bin"
    put_on_path
    write_units "$1"
    begin "start the daemons"
    service daemon-reload
    units enable
    for unit in "${SOCKET_UNITS[@]}"; do
        case "$first$changed" in
        no*"$unit"*) note "$unit has changed: takes effect at the next boot, or: systemctl restart $unit, on a drained node" ;;
        esac
    done
    service start "${SOCKET_UNITS[@]}"
    start_or_restart hooks
    write_registration "$1"
    start_or_restart runtimeproxy
    for unit in "${OPTIONAL_UNITS[@]}"; do
        [ -z "$switched$changed" ] || [ ! -e "$R$UNITS/$unit" ] || service try-restart "$unit"
    done
}

# ---- the three verbs

keep_for_undo() {
    committed=no
    was=$(readlink "$R$OPT/current" || true)
    [ -n "$was" ] || first=yes
    [ "$dry" = no ] || { committed=yes; return 0; }
    install -d -m 700 "$R/var/lib/lading" "$R$STATE"
    exec 9<"$R$STATE"
    flock --nonblock 9 || { committed=yes && die "another install-node.sh is running"; }
    remember "$STATE/manifest"
}
drop_old_versions() { # remove all versions but the current and the previous one
    local path
    for path in "$R$OPT"/versions/*; do
        case $path in "$R$OPT/$(readlink "$R$OPT/current")" | "$R$OPT/$(readlink "$R$OPT/previous" || echo none)") ;; *) run rm -rf -- "$path" ;; esac
    done
}

install_node() {
    local checkout
    checkout=$(cd "$(dirname "$0")/.." && pwd)
    [ -n "$wheel$source$image" ] || [ ! -e "$checkout/pyproject.toml" ] || source=$checkout
    [ -n "$wheel$source$image" ] || misuse "nothing to install: add --wheel FILE, --source DIR or --image DIR"
    [ -z "$wheel" ] || [ -r "$wheel" ] || misuse "cannot read $wheel"
    look_at_image
    preflight
    build_wheel
    local version
    version=$(version_of)
    keep_for_undo
    make_version "$version"
    write_configuration "$version"
    switch_to "$version"
    if [ "$kubelet" = yes ]; then
        begin "point kubelet at $SOCKET"
        local before=$changed
        point_kubelet
        if [ "$changed" != "$before" ]; then
            service daemon-reload
            if live; then restart_kubelet yes; fi
        else
            note "is set already"
        fi
    fi
    committed=yes
    [ "$dry" = yes ] || drop_old_versions
    finish "lading $version"
    [ "$dry" = no ] || return 0
    if [ "$kubelet" = no ]; then say "    add to kubelet yourself: $FLAG"; fi
    say "    undo: install-node.sh $([ -n "$was" ] && echo --rollback || echo --uninstall)    inspect: lading-hooks ledger"
}

rollback() {
    local to
    to=$(readlink "$R$OPT/previous" || true)
    to=${to#versions/}
    step="roll back"
    [ -e "$R$OPT/versions/${to:-none}/complete" ] || die "there is no version before $(current)"
    begin "check that version $to can use the configuration and ledger of this node"
    if live && [ "$dry" = no ]; then
        check_configuration "$to"
        knows_ledger "$to" || die "$(current) has extended the ledger, and $to cannot read it" "docs/install.md, \"Roll back\""
    fi
    keep_for_undo
    switch_to "$to"
    committed=yes
    finish "lading $to; another --rollback returns to ${was#versions/}"
}

knows_ledger() { # whether this version has all migrations that the ledger has had
    local ledger
    ledger="$(setting "$1" hooks state_dir)/node.db"
    [ ! -f "$ledger" ] || "$OPT/versions/$1/bin/python" -I - "$ledger" <<'PYTHON'
import sqlite3, sys
from hooks.ledger.schema import MIGRATIONS
(seen,) = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True).execute("PRAGMA user_version").fetchone()
sys.exit(seen > len(MIGRATIONS))
PYTHON
}

left_in_etc() { # print the files that a person wrote or changed
    [ ! -d "$R$ETC" ] || find "$R$ETC" -type f -printf ", $ETC/%P"
}
held_devices() {
    as_version "$(current)" hooks ledger -o json 2>/dev/null | "$OPT/bin/python" -I -c \
        'import json, sys; print(sum(bool(d["holders"] or d["attachment"]) for d in json.load(sys.stdin)["devices"]))' 2>/dev/null
}
uninstall() {
    local path held
    step=uninstall
    [ -f "$R$STATE/manifest" ] || [ -e "$R$OPT" ] || { finish "Lading is not installed here"; return 0; }
    [ -f "$R$STATE/manifest" ] || die "there is no $STATE/manifest: Lading was not installed with this script"
    if live && [ "$force" = no ]; then
        held=$(held_devices) || held=unknown
        [ "$held" = 0 ] || die "devices that are held: $held" "lading-hooks ledger shows by which pods; drain the node, or --force: running pods keep them"
    fi
    begin "return kubelet to its runtime"
    if [ -n "$(paths_of kubelet)" ]; then
        for path in $(paths_of kubelet); do restore "$path"; done
        service daemon-reload
        if live; then restart_kubelet no; fi
    elif live && [ "$(kubelet_endpoint)" = "unix://$SOCKET" ]; then
        die "kubelet uses $SOCKET, and this script did not set it" "set its runtime's endpoint, restart it, and run this again"
    else
        note "was not changed"
    fi
    begin "stop the daemons"
    service stop "${SERVICE_UNITS[@]}" "${SOCKET_UNITS[@]}"
    for name in "${BOOT_UNITS[@]}" "${OPTIONAL_UNITS[@]}"; do
        [ ! -e "$R$UNITS/$name" ] || service stop "$name"
    done
    if live; then run as_version "$(current)" hooks cdi-specs --remove || note "CDI specs of Lading may be left"; fi
    units disable
    for name in "${OPTIONAL_UNITS[@]}"; do
        [ ! -e "$R$UNITS/$name" ] || run systemctl ${R:+--root="$R"} --quiet disable "$name"
    done
    begin "restore the files"
    for path in $(paths_of unit) $(paths_of config); do restore "$path"; done
    for path in "${OPTIONAL_UNITS[@]/#/$UNITS/}"; do  # a unit that a person copied: its command is removed below
        if grep -q "^ExecStart=$OPT/bin/" "$R$path" 2>/dev/null; then run rm -- "$R$path"; fi
    done
    service daemon-reload
    for path in "${COMMANDS[@]/#/$ON_PATH/}"; do
        if leads_to_us "$path"; then run rm -- "$R$path"; fi
    done
    if live; then run rm -rf -- "$(dirname $SOCKET)"; fi
    run rm -rf -- "$R$OPT"/{versions/*,bin,current,previous}
    [ "$dry" = yes ] || drop_folders
    run rm -rf -- "$R$STATE"
    finish "these files stay: /var/lib/lading/node.db (the ledger)$(left_in_etc)"
}

while [ $# -gt 0 ]; do
    case $1 in
    --wheel | --source | --image | --packages | --config | --node-name | --python | --root)
        [ $# -ge 2 ] || misuse "$1 needs a value"
        case $1 in
        --wheel) wheel=$2 ;;
        --source) source=$(cd "$2" && pwd) ;;
        --image) image=$2 ;;
        --packages) packages=$(cd "$2" && pwd) ;;
        --config) configs+=("$2") ;;
        --node-name) node_name=$2 ;;
        --python) python=$2 ;;
        --root) R=$(cd "$2" && pwd) ;;
        esac
        shift
        ;;
    --rollback) verb=rollback ;;
    --uninstall) verb=uninstall ;;
    --manual) manual=yes ;;
    --report) report=yes ;;
    --no-kubelet) kubelet=no ;;
    --force) force=yes ;;
    --dry-run) dry=yes ;;
    --help | -h) usage; exit 0 ;;
    *) misuse "unknown option $1" ;;
    esac
    shift
done
[ "$R" != / ] || R=''
case $verb in
install) install_node ;;
rollback) rollback ;;
uninstall) uninstall ;;
esac
[ "$problems" = 0 ]
