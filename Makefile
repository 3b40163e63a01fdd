# What every checkout can do. Long steps say what they do and how long they take.
.DEFAULT_GOAL := help
SHELL := /bin/bash

GO ?= go
# The race detector needs a C compiler; without one the tests run without it.
RACE := $(if $(shell command -v gcc cc 2>/dev/null),-race,)
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

.PHONY: help build demo test e2e bench chaos lint

help: ## list the targets
	@sed -n 's/^\([a-z0-9]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

build: ## build bin/standalone-cinder
	$(GO) build -o bin/standalone-cinder .

demo: ## see it work: local control plane, simulated Cinder, three replicas (KUBECONFIG=FILE uses your cluster)
	$(GO) run ./test/demo $(if $(filter command line,$(origin KUBECONFIG)),-kubeconfig $(KUBECONFIG))

test: ## unit and integration tests
	@echo "building the control plane of the tests (first time about 5 minutes on two cores)"
	$(GO) run ./test/controlplane/cmd/controlplane -build-only
	@$(if $(RACE),,echo "no C compiler: the tests run without the race detector";)
	@# Integration tests build the program by themselves, which go's cache of results does not see.
	$(GO) test $(RACE) -count=1 -timeout 30m ./...

# Ceph takes about 30 s and 0.5 GiB of memory; RIG_CEPH=0 leaves RBD out.
e2e: export RIG_CEPH ?= 1
e2e: ## tests against real Cinder, Keystone, iSCSI and Ceph (Debian 12, root)
	@echo "installing and starting Cinder, Keystone, RabbitMQ, MariaDB, tgt and Ceph (first time about 2 min, then 40 s)"
	test/e2e/rig/rig.sh install
	test/e2e/rig/rig.sh start
	set -a; . "$${RIG_STATE:-/tmp/standalone-cinder-e2e}/env"; set +a; \
	  $(GO) test -count=1 -timeout 20m ./test/contract/... && \
	  $(GO) test -count=1 -timeout 20m -tags e2e ./test/e2e/...; \
	  status=$$?; test/e2e/rig/rig.sh stop; exit $$status

bench: ## throughput and requests per claim against the limit measured in the same run
	$(GO) run ./test/bench $(BENCH)

chaos: ## kills, faults and cuts while tenants claim and delete; finds what was leaked, lost, doubled or wrongly deleted
	$(GO) run ./test/chaos $(CHAOS)

lint: ## formatting, vet, staticcheck, tidy modules
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "not gofmt-clean:"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	$(GO) vet ./...
	$(GO) vet -tags e2e ./test/e2e/...
	$(GO) mod tidy -diff
	$(GO) run $(STATICCHECK) ./...
	@# Module registries do not always serve what the oracle needs.
	@cd test/cloudsoracle && if ! $(GO) mod download 2>/dev/null; then echo "test/cloudsoracle left out: its modules cannot be downloaded"; \
	  else $(GO) vet ./... && $(GO) mod tidy -diff && $(GO) run $(STATICCHECK) ./...; fi
