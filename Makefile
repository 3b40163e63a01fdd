# Long steps say what they do and how long they take. KUBERNETES=1.35, say, picks
# the minor version of the control plane in every target that starts one.
.DEFAULT_GOAL := help
SHELL := /bin/bash

GO ?= go
# The race detector needs a C compiler; without one the tests run without it.
RACE := $(if $(shell command -v gcc cc 2>/dev/null),-race,)
# By default, every program with the race detector sleeps for a second before it exits.
export GORACE ?= atexit_sleep_ms=10
# Without it, gRPC's traces alone keep the linker from dropping any method that nothing
# calls: 28 MB. The Dockerfile, build/release and the images of test/e2e have it, too.
TAGS := grpcnotrace
GOLANGCI := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.12.2
GOTESTSUM := gotest.tools/gotestsum@v1.13.0
MISSPELL := github.com/golangci/misspell/cmd/misspell@v0.8.0
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.9.0
# krew, at the version that build/release uses.
KREW = $(shell sed -n 's/^const krew = "\(.*\)"$$/\1/p' build/release/release_test.go)
# Helm and kustomize, at the versions that test/deploy uses.
RENDERERS = $(shell sed -n 's/^\t\(helm\|kustomize\) *= "\(.*\)"$$/\2/p' test/deploy/render.go)

# The available minors of the control plane, each in a nested module.
CONTROLPLANES := test/controlplane/binaries
MINORS := $(shell ls $(CONTROLPLANES) | sort -V)

# Tests that build or run other programs, which Go's cache of test results does
# not see. Continuous integration uses no cached result at all.
PROGRAM_TESTS := ./test/integration . ./backends/auth ./test/docs ./test/harness ./test/controlplane ./test/controlplane/cmd/controlplane
# A comment of each test says when it runs (test/tier). Without a pattern, every test would.
tests-of = '$(or $(shell $(GO) run ./test/tier $(1)),$(error no pattern for the tests of $(1)))'

# What an upgrade starts from: until there are releases, the last commit that continuous
# integration has passed.
PREVIOUS ?= b08c01df
PREVIOUS_PROGRAM = $(if $(shell git cat-file -e '$(PREVIOUS)^{commit}' 2>/dev/null && echo yes),bin/previous-$(PREVIOUS))

# A line for each package, then what failed and how much was tested.
SUMMED = $(GO) run $(GOTESTSUM) --format pkgname-and-test-fails --format-hide-empty-pkg --

.PHONY: help build demo test render monitoring faults faults-real faults-simulated test-oldest e2e conformance browser bench chaos simulate upgrade release release-check vulncheck lint lint-main lint-nested fresh

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22
	@echo "  KUBERNETES=MINOR make ...  with that control plane (one of $(MINORS)) instead of the newest that can be downloaded"

build: ## build bin/standalone-cinder
	$(GO) build -tags $(TAGS) -o bin/standalone-cinder .

demo: ## see it work: a local control plane, simulated Cinder, three replicas (KUBECONFIG=FILE uses your cluster, NODES=2 goes on with pods on nodes and real Cinder)
	$(if $(NODES),GO='$(GO)' test/demo/nodes.sh '$(NODES)',$(GO) run ./test/demo) $(if $(filter command line,$(origin KUBECONFIG)),-kubeconfig $(KUBECONFIG))

test: ## unit and integration tests, except those of make faults and make render
	@echo "building the control plane for the tests (5 to 15 minutes on two cores the first time), then testing for 5 minutes; what has not changed since is not tested again"
	@$(if $(RACE),,echo "no C compiler: the tests run without the race detector";)
	@# In continuous integration, make lint has vetted everything.
	$(SUMMED) $(RACE) $(if $(CI),-count=1 -vet=off) -timeout 30m -parallel 8 -skip $(call tests-of,matrix) \
	  $$($(GO) list ./... | grep -vxF "$$($(GO) list $(PROGRAM_TESTS) ./test/deploy ./test/install)")
	@# The race detector allocates, too, and makes the model of removals slow.
	$(if $(RACE),$(GO) test $(if $(CI),-count=1) ./test/budgets ./provisioner/objects/removal)
	cd test/csisanity && $(GO) test $(if $(CI),-count=1) .
	cd test/simulate && $(GO) test -count=1 ./power
	@# The minor is chosen once.
	CONTROLPLANE_BINARY=$$($(GO) run ./test/controlplane/cmd/controlplane -build-only) && export CONTROLPLANE_BINARY && \
	  echo "testing with $$CONTROLPLANE_BINARY" && $(SUMMED) $(RACE) -count=1 -timeout 30m -parallel 8 -skip $(call tests-of,matrix outage apart) $(PROGRAM_TESTS)

render: ## render the chart and the kustomizations, lint the chart, and follow the README and the tutorial
	@echo "building Helm, kustomize and kubectl (5 minutes on two cores the first time), and the control plane if make test did not; then 5 minutes"
	CONTROLPLANE_BINARY=$$($(GO) run ./test/controlplane/cmd/controlplane -build-only) && export CONTROLPLANE_BINARY && \
	  $(GO) test -count=1 -timeout 40m ./test/deploy ./test/install

monitoring: ## evaluate the alerts and the dashboard's queries with Prometheus' engine, and check the operator's manifests
	@echo "building Prometheus' rule engine (2 minutes on two cores the first time), then testing for a quarter of a minute"
	cd test/monitoring && $(GO) test -count=1 -timeout 10m .

# simulated runs tests of test/simulate with changed copies of Go's runtime.
simulated = echo "building Kubernetes' volume controllers and the program with changed copies of Go's runtime (5 minutes on two cores the first time)"; \
  cd test/simulate && overlay=$$($(GO) run ./overlay '$(CURDIR)/bin/simulate') && $(GO) test -overlay "$$overlay" -count=1 -timeout 60m -run $(1) .

faults: faults-real faults-simulated ## outages, the crash matrices, split brain, a thousand claims, 20,000 volumes and 5,000 mutated documents (25 minutes on two cores with FAULT_SAMPLE=12, much longer without)

faults-real:
	CONTROLPLANE_BINARY=$$($(GO) run ./test/controlplane/cmd/controlplane -build-only) && export CONTROLPLANE_BINARY && \
	  $(GO) test $(RACE) -count=1 -timeout 30m -parallel 8 -run $(call tests-of,outage) ./test/integration && \
	  $(GO) test $(RACE) -count=1 -timeout 40m -run $(call tests-of,matrix) ./test/integration ./test/scale ./test/contract
	$(GO) test -count=1 -timeout 10m -run '^TestControlPlane$$' ./test/controlplane
	@# The race detector would only make these slower: one goroutine each.
	$(GO) test -count=1 -run '^TestNoAnswerTakesMuchMemory$$' ./backends/cinder
	$(GO) test -count=1 -run '^TestMutatedDocuments$$' ./mappers -mutations 5000

# A case takes a quarter of a second there, so four times as many run.
faults-simulated:
	@$(if $(FAULT_SAMPLE),export FAULT_SAMPLE=$$((($(FAULT_SAMPLE) + 3) / 4)); )$(call simulated,'^TestCrashMatrix$$')

test-oldest: export KUBERNETES = $(firstword $(MINORS))
test-oldest: export CONTROLPLANE_BINARY =
test-oldest: ## the tests that depend on the API server, on the oldest minor (or on KUBERNETES=MINOR from the command line)
	@echo "building the control plane of Kubernetes $(KUBERNETES) (about 5 minutes on two cores the first time), then testing for 2 minutes"
	$(GO) run ./test/controlplane/cmd/controlplane -build-only
	$(GO) test $(RACE) -count=1 -timeout 15m -run $(call tests-of,oldest) ./test/integration
	$(GO) test -count=1 -timeout 10m -run '^TestControlPlane$$' ./test/controlplane

# In front of real Cinder, all attacks of the hostile server take half an hour.
# E2E_SHORT= runs them all, kills node plugins more often, and has more pods on
# real kubelets. Against the simulator, make test and make faults run them all.
E2E_SHORT ?= -short
# E2E_SKIP=PATTERN leaves out tests of test/e2e, and E2E_ONLY=PATTERN all others.

# Ceph takes about 30 s and 0.5 GiB of memory; RIG_CEPH=0 skips RBD.
e2e: export RIG_CEPH ?= 1
# Without the history of the repository, no test upgrades.
e2e: export E2E_PREVIOUS = $(addprefix $(CURDIR)/,$(PREVIOUS_PROGRAM))
e2e: $(PREVIOUS_PROGRAM)
e2e: ## tests against real Cinder, Keystone, iSCSI and Ceph (Debian 12, root)
	@echo "installing and starting Cinder, Keystone, RabbitMQ, MariaDB, tgt and Ceph (about 2 min the first time, then 40 s)"
	@command -v qemu-system-x86_64 >/dev/null && command -v debootstrap >/dev/null || { echo "installing QEMU and debootstrap with apt (a minute)"; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends qemu-system-x86 debootstrap >/dev/null; }
	test/e2e/rig/rig.sh install
	test/e2e/rig/rig.sh start
	@# The contract mostly waits for Cinder, so the kubelet is compiled meanwhile.
	set -a; . "$${RIG_STATE:-/tmp/standalone-cinder-e2e}/env"; set +a; \
	  $(if $(E2E_ONLY),,(nice $(GO) run ./test/controlplane/cmd/controlplane -build-kubelet >/dev/null 2>&1 &); $(GO) test -count=1 -timeout 60m $(E2E_SHORT) -skip '^TestHostileTable' ./test/contract/... &&) \
	  $(GO) test -count=1 -timeout 120m $(E2E_SHORT) $(if $(E2E_SKIP),-skip '$(E2E_SKIP)') $(if $(E2E_ONLY),-run '$(E2E_ONLY)') -tags e2e ./test/e2e/...; \
	  status=$$?; test/e2e/rig/rig.sh stop; exit $$status

# CONFORMANCE_DRIVER=csi, csi-shared, csi-rbd, csi-encrypted, native or native-shared runs one driver only, CONFORMANCE_FOCUS and CONFORMANCE_SKIP
# are patterns of cases' names, CONFORMANCE_PROCESSES is how many run at once, and with
# CONFORMANCE_RESUME=1, cases that have passed or were skipped before do not run again.
conformance: export RIG_CEPH = $(if $(filter-out csi-rbd,$(CONFORMANCE_DRIVER)),0,1)
conformance: export CONFORMANCE_REPORT ?= $(CURDIR)/bin/conformance
conformance: ## Kubernetes' own tests of storage drivers, with real kubelets and Cinder (Debian 12, root; hours without CONFORMANCE_FOCUS)
	@echo "building the suite (6 minutes on two cores the first time), then starting Cinder and two nodes (3 minutes); a case takes half a minute"
	@command -v qemu-system-x86_64 >/dev/null && command -v debootstrap >/dev/null && test -x /bin/busybox || { echo "installing QEMU, debootstrap and BusyBox with apt (a minute)"; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends qemu-system-x86 debootstrap busybox-static >/dev/null; }
	test/e2e/rig/rig.sh install
	test/e2e/rig/rig.sh start
	mkdir -p "$$CONFORMANCE_REPORT"; set -a; . "$${RIG_STATE:-/tmp/standalone-cinder-e2e}/env"; set +a; \
	  $(GO) test -count=1 -timeout 24h -tags e2e -run '^TestKubernetesStorageSuite$$' -v ./test/e2e; \
	  status=$$?; test/e2e/rig/rig.sh stop; $(GO) test ./test/conformance -run TestPageIsUpToDate -update; exit $$status

browser: ## the status page in a headless Chromium, which is installed with apt if it is missing
	@command -v chromium >/dev/null || { echo "installing Chromium with apt (half a minute)"; apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; }
	cd test/browser && $(GO) test -count=1 -timeout 10m ./...

# How long pods wait is measured on real kubelets with real Cinder.
bench: ## throughput and requests per claim against the limit measured in the same run (BENCH='-json FILE -svg FILE' writes them; NODES=2 also measures pods on emulated nodes, in a quarter of an hour)
	$(if $(NODES),E2E_POD_WAITS=$(CURDIR)/bin/pods.json $(MAKE) e2e RIG_CEPH=0 E2E_ONLY='^TestHowLongPodsWait$$')
	$(GO) run ./test/bench $(if $(NODES),-pods bin/pods.json) $(BENCH)

chaos: ## kills, faults and cuts while tenants claim and delete; finds what was leaked, lost, duplicated or wrongly deleted
	$(GO) run ./test/chaos $(CHAOS)

simulate: ## chaos in synctest bubbles, by seeds that can be repeated: SIMULATE='-duration 3m' or SIMULATE='-seed 7 -seeds 1 -traces DIR'
	@$(call simulated,'^TestSeeds$$') $(SIMULATE)

bin/previous-$(PREVIOUS):
	@echo "building the program of $(PREVIOUS) (2 minutes on two cores the first time)"
	rm -rf bin/previous && mkdir -p bin/previous
	git archive $(PREVIOUS) | tar -x -C bin/previous
	cd bin/previous && CGO_ENABLED=0 $(GO) build -trimpath -ldflags="-s -w" -o ../previous-$(PREVIOUS) .
	rm -rf bin/previous

upgrade: bin/previous-$(PREVIOUS)
upgrade: ## a chaos campaign in which the program of PREVIOUS=COMMIT and the present one take turns; it ends with the present one
	$(GO) run ./test/chaos -previous bin/previous-$(PREVIOUS) $(CHAOS)

release: ## binaries, plugin, image, SBOMs, chart and checksums of VERSION=v1.2.3 (default: git describe) in dist/; SIGNING_KEY=FILE signs them, REGISTRY=registry.example/PATH gets image and chart, PLUGINS=darwin/arm64 limits the plugin's platforms
	@echo "building for five platforms, and Helm (12 minutes on two cores the first time, later half a minute)"
	rm -rf dist
	cd build/release && $(GO) run . -source ../.. -out ../../dist -version '$(VERSION)' -key '$(if $(SIGNING_KEY),$(abspath $(SIGNING_KEY)))' -push '$(REGISTRY)' $(if $(PLUGINS),-plugins '$(PLUGINS)')

release-check: ## build a release twice, at different places, compare all bytes, and read it back
	@echo "building two releases (15 minutes on two cores the first time, later two)"
	cd build/release && $(GO) test -count=1 -timeout 40m ./...

vulncheck: ## known vulnerabilities in code that the program reaches (needs https://vuln.go.dev)
	$(GO) run $(GOVULNCHECK) ./...
	cd build/release && $(GO) run $(GOVULNCHECK) ./...

# Findings cached by another checkout have the paths of its files, whose nolint
# comments the linter can no longer read.
lint lint-main lint-nested: export GOLANGCI_LINT_CACHE = $(CURDIR)/bin/lint-cache
lint: lint-main lint-nested ## formatting, linters (.golangci.yml), American spelling, tidy modules

lint-main:
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "not gofmt-clean:"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	$(GO) mod tidy -diff
	$(GO) run $(GOLANGCI) run --build-tags e2e ./...
	@# Fibre Channel is spelled that way. docs/metrics.md quotes libraries.
	$(GO) run $(MISSPELL) -error -locale US -i fibre,rulle $$(git ls-files '*.go' '*.md' | grep -v -e /testdata/ -e ^docs/metrics.md$$)

# The linter compiles what the nested modules import: Prometheus, Kubernetes' controllers.
lint-nested:
	cd build/release && $(GO) mod tidy -diff && $(GO) run $(GOLANGCI) run ./...
	cd test/monitoring && $(GO) mod tidy -diff && $(GO) run $(GOLANGCI) run ./...
	cd test/browser && $(GO) mod tidy -diff && $(GO) run $(GOLANGCI) run ./...
	cd test/csisanity && $(GO) mod tidy -diff && $(GO) run $(GOLANGCI) run ./...
	cd test/simulate && $(GO) mod tidy -diff && $(GO) run $(GOLANGCI) run ./...
	cd test/sidecars && $(GO) mod tidy -diff
	cd test/conformance/suite && $(GO) mod tidy -diff
	@# Module registries do not always serve the oracle's modules.
	@cd test/cloudsoracle && if ! $(GO) mod download 2>/dev/null; then echo "test/cloudsoracle skipped: its modules cannot be downloaded"; \
	  else $(GO) mod tidy -diff && $(GO) run $(GOLANGCI) run ./...; fi

fresh: ## check that everything a first run downloads is still served, by downloading it into an empty module cache
	@echo "downloading 4 GB of modules into an empty cache, which is then removed (about 4 minutes)"
	@export GOMODCACHE=$$(mktemp -d) GOFLAGS=-modcacherw && trap 'rm -rf "$$GOMODCACHE"' EXIT && set -ex && \
	  : listing packages downloads what building, vetting and testing them needs, and nothing else && \
	  $(GO) list -deps -test -tags e2e ./... >/dev/null && \
	  $(GO) mod tidy -diff && \
	  GOARCH=arm64 $(GO) list -deps . >/dev/null && \
	  (cd build/release && $(GO) list -deps -test ./... >/dev/null && $(GO) mod tidy -diff) && \
	  (cd test/monitoring && $(GO) list -deps -test ./... >/dev/null && $(GO) mod tidy -diff) && \
	  (cd test/browser && $(GO) list -deps -test ./... >/dev/null && $(GO) mod tidy -diff) && \
	  (cd test/csisanity && $(GO) list -deps -test ./... >/dev/null && $(GO) mod tidy -diff) && \
	  (cd test/simulate && $(GO) list -deps -test ./... >/dev/null && $(GO) mod tidy -diff) && \
	  (cd test/sidecars && CGO_ENABLED=0 $(GO) list -deps tool >/dev/null && $(GO) mod tidy -diff) && \
	  (cd test/conformance/suite && CGO_ENABLED=0 $(GO) list -deps -test . tool >/dev/null && $(GO) mod tidy -diff) && \
	  (cd test/install/kubectl && CGO_ENABLED=0 $(GO) list -deps . >/dev/null && $(GO) mod tidy -diff) && \
	  : getting a program into an empty module downloads what building it needs && \
	  for tool in $(GOLANGCI) $(MISSPELL) $(GOTESTSUM) "$(RENDERERS)" $(KREW); do \
	    module=$$(mktemp -d -p "$$GOMODCACHE") && (cd "$$module" && $(GO) mod init tool && $(GO) get $$tool) || exit 1; done && \
	  set +x && served=0 && for minor in $(CONTROLPLANES)/*/; do \
	    if (cd $$minor && CGO_ENABLED=0 $(GO) list -deps ./... >/dev/null); then served=1; echo "$$minor: served"; \
	    else echo "$$minor: REFUSED; a first run uses another minor"; fi; done; test $$served = 1
