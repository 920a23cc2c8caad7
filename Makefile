# The tasks of the project. "make test" is the one test command.

GO      ?= go
GOBIN   := $(shell $(GO) env GOPATH)/bin
VERSION ?=

# Packages whose tests run once more under the race detector: those that share
# state between goroutines. New packages join by existing; the commands and the
# pure parsers are left out because the detector finds nothing there.
RACE = $(shell $(GO) list ./... 2>/dev/null | grep -v -e /cmd/ -e /internal/config)

GOLANGCI_VERSION := v2.15.0

.PHONY: all build test model noraw race lint fmt fmt-check vet bench bench-e2e chaos e2e-real e2e-real-grpc e2e-kubernetes cluster-model fuzz docs proto tools clean

all: build

# Static: the binary starts in an empty image.
build:
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-X main.version=$(VERSION)" -o bin/sluice ./cmd/sluice

# What the tests run once more with net/http's stack (--http-stack net): a short part
# of test/e2e, or all of it with SLUICE_E2E_FULL=1.
ifeq ($(SLUICE_E2E_FULL),1)
NET = .
else
NET = TestBadInput|TestClientDisconnects$$|TestOneLegFails|TestEventsArriveAsTheyAreSent|TestQueueOfOne|TestDrainServesRunningAndWaitingRequests|TestBodiesArriveUnchanged|TestIdleEngineConnections|TestClientThatSendsNothing|TestPipelinedRequests|TestIdleConnectionsAndFewFiles
endif

test:
	$(GO) test -timeout 10m ./...
	SLUICE_E2E_STACK=net $(GO) test -timeout 10m -run '$(NET)' ./test/e2e
	@if [ "$$($(GO) env CGO_ENABLED)" = 1 ]; then \
		echo "$(GO) test -race -timeout 20m (all but the commands and parsers)"; \
		$(GO) test -race -timeout 20m $(RACE); \
	else echo "no C compiler, which the race detector needs: its run is left out"; fi
	@test/stores/install.sh --check >/dev/null || echo "left out: tests of the stores of a cluster; $$(test/stores/install.sh --check)"

# The build that reads and writes sockets through package net alone.
noraw:
	$(GO) vet -tags sluice_noraw ./...
	$(GO) test -tags sluice_noraw ./internal/wire ./internal/upstream ./internal/http1

# The gate beside its reference model for about N random steps, in histories of 50 on
# average; each history begins with another fleet and configuration. A million take a few
# minutes. What fails is made small, and says how to run it again.
N ?= 1000000
model:
	$(GO) test ./admission -count=1 -timeout 0 -v -run '^TestModel$$' -rapid.steps=50 -rapid.checks=$$(( ($(N) + 49) / 50 ))

# Routers before engines that die, hang and come back, and sources that change what they
# declare, under load: a schedule drawn from CHAOS_SEED, CHAOS_SECS long. What fails says
# the seed and the schedule.
CHAOS_SEED ?= $(shell od -An -N3 -tu4 /dev/urandom | tr -d ' ')
CHAOS_SECS ?= 120
chaos:
	CHAOS_SEED=$(CHAOS_SEED) CHAOS_SECS=$(CHAOS_SECS) $(GO) test ./test/e2e -count=1 -timeout 0 -v -run '^TestChaos$$'

# N schedules of each kind of the model checker of clusters; some are in `make test`.
N ?= 10000
cluster-model:
	$(GO) test -timeout 0 -run 'TestChecker$$' ./internal/cluster -v -args -checker.seeds=$(N)

race:
	$(GO) test -race -timeout 20m ./...

fmt:
	gofmt -w $$(git ls-files '*.go')

fmt-check:
	@out="$$(gofmt -l $$(git ls-files '*.go'))"; \
	if [ -n "$$out" ]; then echo "not gofmt'ed (make fmt):"; echo "$$out"; exit 1; fi

vet:
	$(GO) vet ./...

lint: tools
	$(GOBIN)/golangci-lint run

# The pinned linter, installed once.
tools:
	@$(GOBIN)/golangci-lint version 2>/dev/null | grep -qF 'version $(GOLANGCI_VERSION:v%=%) ' || \
		$(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)

bench:
	$(GO) test -run '^$$' -bench . -benchmem ./...

# The load run against simulated engines, in processes of their own (see
# bench/doc.go): make bench-e2e BENCH='-peer-smg auto -out FILE'.
BENCH ?=
bench-e2e:
	$(GO) run ./bench $(BENCH)

# The tests against a real vLLM on the CPU, which is installed first where it is
# not: gigabytes, see test/real-engine/README.md. REAL='-run Pair' runs some.
# e2e-real-grpc is about engines by gRPC: other tests, on engines of their own.
REAL       ?=
TRANSCRIPT ?= $(CURDIR)/bin/$@.txt
e2e-real: ENGINES = all
e2e-real-grpc: ENGINES = grpc
e2e-real e2e-real-grpc:
	test/real-engine/install.sh
	@mkdir -p $(dir $(TRANSCRIPT))
	$(GO) test -tags realengine -count=1 -timeout 60m -v ./test/real-engine -engines $(ENGINES) -transcript $(TRANSCRIPT) $(REAL); \
	status=$$?; [ -n "$$REAL_ENGINE_KEEP" ] || $(GO) run ./test/real-engine stop; exit $$status

# The tests on a real kube-apiserver, which is installed first where it is not: minutes of
# building once, see test/kubernetes/README.md. KUBERNETES='-run Rollout -v' runs some.
KUBERNETES ?=
e2e-kubernetes:
	test/kubernetes/install.sh
	$(GO) test -tags kubernetes -count=1 -timeout 15m ./test/kubernetes $(KUBERNETES)

# Every fuzz target for a short while; FUZZTIME=10m for a longer one.
FUZZTIME ?= 10s
fuzz:
	@set -e; for f in $$(git ls-files '*_test.go' | xargs grep -l '^func Fuzz'); do \
		for t in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' $$f); do \
			echo "$$(dirname $$f) $$t"; \
			$(GO) test -run '^$$' -fuzz "^$$t\$$" -fuzztime $(FUZZTIME) ./$$(dirname $$f); \
		done; \
	done

# The references of all settings, metrics and clients' methods, and the picture of the packages,
# from the code that defines them.
docs:
	$(GO) run ./cmd/sluice config-reference > docs/configuration.md.tmp
	mv docs/configuration.md.tmp docs/configuration.md
	$(GO) run ./cmd/sluice metrics-reference > docs/metrics.md.tmp
	mv docs/metrics.md.tmp docs/metrics.md
	$(GO) run ./cmd/sluice clients-reference > docs/clients.md.tmp
	mv docs/clients.md.tmp docs/clients.md
	$(GO) test -count=1 -run TestPackagesPicture ./docs -args -write

# The Go code of the gRPC contracts of engines, from internal/enginepb/*/*.proto. Needs
# nothing but Go; the compiler and its plugins are built at first use, which takes minutes.
BUF_VERSION := v1.75.0
proto:
	cd internal/enginepb && $(GO) run github.com/bufbuild/buf/cmd/buf@$(BUF_VERSION) generate

clean:
	rm -rf bin
