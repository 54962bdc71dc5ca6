# Every target works in .venv; `make setup` makes it. See README.md.
VENV   := .venv
PY     := $(VENV)/bin/python
PYTHON ?= python3
PIP    := $(VENV)/bin/pip --disable-pip-version-check install
GET    := $(PYTHON) simnode/progress.py

ON_MACHINE := $(addprefix tests/,install page peers shares demos faults node hostile cluster gpu vm)
IN_PROCESS := $(filter-out $(ON_MACHINE),$(patsubst %/,%,$(wildcard tests/[a-z]*/)))
CORES      := $(shell nproc)
WORKERS    ?= $(CORES)
# Tests that start daemons, a runtime or a browser often wait: two for each core.
LANES      ?= $(shell echo $$(( 2 * $(CORES) )))
PYTEST     := $(VENV)/bin/pytest
# Beside other busy processes the tests run first, where the kernel permits a nice value below 0: they talk to daemons that wait for
# an answer for seconds only. All processes of this make inherit the value.
NICENESS   := $(if $(filter lint check test test-long,$(MAKECMDGOALS)),$(shell renice -n -10 -p $$PPID 2>&1))
# These tests make 250,000 small files, which /dev/shm takes ten times as fast as a disk. It must be large enough, and tests have
# programs and device nodes there.
MEMORY      = $(shell findmnt -rbno OPTIONS,AVAIL /dev/shm | awk '$$1 !~ /noexec|nodev/ && $$2 > 4e9 {print "/dev/shm"; exit}')
IN_MEMORY   = $(addprefix PYTEST_DEBUG_TEMPROOT=,$(MEMORY)) $(PYTEST) -o tmp_path_retention_policy=failed
# A test on a real runtime depends on when other programs do what. One that fails runs once more, alone, and then counts; the log has
# both. A test that left something behind fails for good.
ON_MACHINE_RUN = run() { $(PYTEST) --no-loadscope-reorder "$$@" $(ON_MACHINE); }; \
    run --cache-clear --numprocesses=$(LANES) --part=$(1) || { \
        test $$? = 1 && printf '\nThe tests that failed run once more, one by one.\n\n' && \
        run --last-failed --last-failed-no-failures=none; }
# Each test that starts a daemon would otherwise compile all of its modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup share-library launched-guard ldcache-hook wheel image chart release demo demo-central demo-page check test test-long machine test-cluster vm test-vm test-gpu bench-gpu gpu-kit bench-proxy bench-central bench-gangs bench-gang-replay bench-diverse bench-placement bench-weights bench-isolation lint fmt docs proto requirements

setup: $(VENV)/.done

# The packages of the commands and the demos; setuptools, for the editable install, is pinned with the tests' packages.
$(VENV)/.commands: requirements.txt requirements-dev.txt pyproject.toml
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "installing python3 and python3-venv"; \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends python3 python3-venv; }
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("error: Python 3.11 or newer is needed, this is " + sys.version.split()[0])'
	@test -x $(VENV)/bin/pip || $(PYTHON) -m venv $(VENV)
	@sed -n '/^setuptools==/,/# via/p' requirements-dev.txt > $(VENV)/setuptools.txt
	@$(GET) "installing the Python packages of requirements.txt into $(VENV)" $(PIP) --require-hashes -r requirements.txt -r $(VENV)/setuptools.txt
	@$(PIP) --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.done: $(VENV)/.commands
	@$(GET) "installing those of requirements-dev.txt, for tests and benches" $(PIP) --require-hashes -r requirements-dev.txt
	@touch $@

lint: setup
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(PY) -m lint.cycles
	$(PY) -m lint.words
	$(PY) -m lint.classes
	$(PY) -m lint.mirrors
	$(PY) -m protos.generate --check

fmt: setup
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

# The tables of settings, metrics and reasons, from the code.
docs: setup
	$(PY) -m lint.doc_tables

proto: setup
	$(PY) -m protos.generate

# Pins with hashes, without an index address in the file.
requirements:
	uv pip compile --quiet --generate-hashes --no-emit-index-url --no-header --python-version 3.11 pyproject.toml -o requirements.txt
	uv pip compile --quiet --generate-hashes --no-emit-index-url --no-header --python-version 3.11 --group dev pyproject.toml -o requirements-dev.txt

# What is compiled, for x86-64 and aarch64, as a part of the wheel: the libraries of the isolation tokens, the guard, which is
# also the program of the runtime handler, and the hook that makes the loader's cache of containers. The compiler is 100 MB, so
# only these need it.
LIBRARY := shares/library/built/aarch64/libnvidia-ml.so.1
NRI := hooks/frontends/nri
GUARD := $(NRI)/guard/built/aarch64/ladingguard
LDCACHE := hooks/vendors/nvidia/ldcache/built/aarch64/lading-ldcache
share-library: $(LIBRARY)
launched-guard: $(GUARD)
ldcache-hook: $(LDCACHE)
$(VENV)/.compiler: requirements-library.txt $(VENV)/.commands
	@$(GET) "installing the compiler of requirements-library.txt into $(VENV)" $(PIP) --require-hashes -r requirements-library.txt
	@touch $@
$(LIBRARY): $(wildcard shares/library/*.[ch]) shares/library/build.py lading/compiling.py $(VENV)/.compiler
	@$(PY) -m shares.library.build
# Its rule, texts and version come from Python.
$(GUARD): $(wildcard $(NRI)/guard/*.[chp]* lading/native/*.[ch] hooks/forms/*.py) $(NRI)/wire.py \
    $(addprefix lading/,__init__.py annotations.py compiling.py log.py reasons.py vocabulary.py) $(VENV)/.compiler
	@$(PY) -m hooks.frontends.nri.guard.build
$(LDCACHE): $(wildcard hooks/vendors/nvidia/ldcache/*.[chp]* lading/native/*.[ch]) lading/compiling.py $(VENV)/.compiler
	@$(PY) -m hooks.vendors.nvidia.ldcache.build

# The wheel from which a node is installed (deploy/install-node.sh --wheel), with units, manifests and pinned requirements.
wheel: $(VENV)/.commands $(LIBRARY) $(GUARD) $(LDCACHE)
	@$(PY) deploy/wheel.py

# The images of central and of the nodes in one tar, without a registry or a daemon: for `ctr images import` and `docker load`.
image: $(VENV)/.commands $(LIBRARY) $(GUARD) $(LDCACHE)
	@$(PY) deploy/image/build.py --wheel "$$($(PY) deploy/wheel.py)"

# The Helm chart, of the same manifests as kubectl apply -k deploy/.
chart: $(VENV)/.commands
	@$(PY) deploy/chart/build.py

# A release: wheel, images, chart, manifests, SBOM and SHA256SUMS, in dist/lading-VERSION.
release: $(VENV)/.commands $(LIBRARY) $(GUARD)
	@$(PY) deploy/release.py

# The main job on a real containerd, shown and checked. DEMO_KEEP=1 leaves it running.
demo: $(VENV)/.commands
	@$(PY) -m simnode.install
	@$(PY) -m simnode.demo

# The scheduler extender on simulated nodes, shown and checked: no root, no containerd, no cluster.
demo-central: $(VENV)/.commands
	@$(PY) -m simnode.demo_central

# The page of lading-central, on 20 simulated nodes where pods come and go: http://127.0.0.1:8081/ until Ctrl-C.
demo-page: $(VENV)/.commands
	@$(PY) -m simnode.page --nodes 20

# Lint, and the tests that need no daemon, runtime or cluster: unit, golden and property tests. Three to six minutes on two cores.
check: setup lint
	$(IN_MEMORY) -m "not long" --numprocesses=$(WORKERS) $(IN_PROCESS)

# `check`, then a part of the tests on real runtimes, of every kind: faults, hostile clients, peers, shares, installs, nodes.
test: check machine
	@$(call ON_MACHINE_RUN,quick)

# What CI runs after `test`: the rest of all tests, the tests that repeat themselves with large numbers (tests/depth.py), and the
# tests of `check` on newer Pythons.
test-long: setup machine
	@export LADING_DEPTH=long; $(call ON_MACHINE_RUN,rest)
	LADING_DEPTH=long $(IN_MEMORY) -m "long or repeats or hypothesis" --numprocesses=$(WORKERS) $(IN_PROCESS)
	$(PY) -m tests.pythons $(IN_PROCESS) tests/node/test_activation.py

# The programs that tests on a real runtime use: containerd 1.7 and 2, runc, systemd, a browser, a compiler.
machine: setup $(VENV)/.compiler
	@$(PY) -m simnode.install --tests 1.7.
	-@$(PY) -m simnode.install 2.

# Tests with a real control plane: LADING_KUBE_ASSETS names a folder with etcd, kube-apiserver, kube-scheduler,
# kube-controller-manager, kubelet and kubectl.
test-cluster: setup
	@$(PY) -m simnode.install
	$(VENV)/bin/pytest tests/cluster

# A node of real kernel objects in QEMU: cards, SR-IOV VFs, RDMA devices, cgroup v2, systemd. `vm` boots it and prints how to get in;
# `test-vm` runs tests in it. The first start downloads Debian packages, which take 1.4 GB unpacked, and builds for half an hour on two
# busy cores; a boot takes minutes without KVM. VM is one of simnode/vm/systems.py. It needs root.
VM ?= debian13
VM_PARTS := $(LIBRARY) $(GUARD) $(LDCACHE)
vm: $(VENV)/.commands $(VM_PARTS)
	@$(PY) -m simnode.install --vm
	@$(PY) -m simnode.vm --system $(VM)

test-vm: setup $(VM_PARTS)
	@$(PY) -m simnode.install --vm
	@$(PY) -m simnode.vm.image $(VM)
	LADING_VM=$(VM) $(PYTEST) -v tests/vm

# Tests on the card of this machine, under five minutes: shares with the driver's own library, a node's path, frameworks. Without a
# network: PY=python3 takes a Python that has the packages, and gpu-kit, made elsewhere, is what a compiler makes (CONTRIBUTING.md).
test-gpu:
	$(PY) -m tests.gpu

# How programs share the card of this machine, by tokens, time slices, MPS, and the HAMi-core that LADING_HAMI names:
# bench/out/gpu.json. Under four minutes.
bench-gpu:
	$(PY) -m bench.gpu

gpu-kit: setup $(VENV)/.compiler
	@$(PY) -m tests.gpu.kit

# Compare the proxy and NRI with a direct connection and with a plain gRPC proxy, in one run: bench/out/proxy.json. About 10
# minutes.
bench-proxy: setup
	@$(PY) -m simnode.install 1.7.
	$(PY) -m bench.proxy

# The scheduler extender at 1,000, 5,000 and 15,000 nodes: bench/out/central.json. About 3 minutes.
bench-central: setup
	$(PY) -m bench.central

# What a gang of 512 pods costs central at 5,000 nodes, and what 10,000 small gangs do: bench/out/gangs.json, gang_look.json. 3 minutes.
bench-gangs: setup
	$(PY) -m bench.gangs
	$(PY) -m bench.gang_look

# A first filter for pods of several containers, where every node is in another state: bench/out/diverse.json. About 2 minutes.
bench-diverse: setup
	$(PY) -m bench.diverse

# Every workload of a recorded cluster under every policy, ten seeds, and three with departures: bench/out/placement.json and
# pictures beside it. About an hour. LADING_TRACES names a folder with the CSV files of Alibaba's cluster-trace-gpu-v2023.
bench-placement: setup
	$(PY) -m bench.placement

# Gangs that come and end, by central's code and by the rules of others: bench/out/gang_replay.json. About 5 minutes.
# LADING_TRACES is as above.
bench-gang-replay: setup
	$(PY) -m bench.gang_replay

# Compare other weights of the score, on seeds that no figure in the docs uses: bench/out/weights.json. About 10
# minutes. LADING_TRACES is as above.
bench-weights: setup
	$(PY) -m bench.weights

# How truly shares of a card are kept in virtual time, beside other ways to share one, and what the library costs on the
# fake card: bench/out/isolation.json. About 5 minutes; needs a C compiler.
bench-isolation: setup
	$(PY) -m bench.isolation
