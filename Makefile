# make demo and make test are all a newcomer needs; make help lists the rest.

VERSION    ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOLANGCI    = github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
# The server that make bench-long compares with: the newest that Go 1.26.8 builds.
TEMPORAL    = v1.32.1

# The tests that hold printed documents to the code; with -update they print them.
DOCS        = ./internal/lifecycle ./internal/dag ./internal/api ./cmd/drover -run 'Docs|Descriptions|OpenAPI'

export CGO_ENABLED ?= 0
GO_BUILD = go build -trimpath -ldflags '-s -w -X main.version=$(VERSION)'

# The run whose figures are published.
CHAOS_FOR  ?= 4m

.PHONY: help build demo test chaos chaos-lease bench bench-long bench-check sim conformance dag-model fuzz mutants upgrade reliability check lint golangci docs docs-check clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-11s %s\n", $$1, $$2}' Makefile

build: ## bin/drover, and the worker of the example
	$(GO_BUILD) -o bin/drover ./cmd/drover
	$(GO_BUILD) -o bin/dataset-worker ./examples/dataset-ingestion/worker

demo: build ## a video through the example pipeline; VIDEO=my.mp4 for your own, FRESH=1 to start anew
	@tools/demo.sh

test: ## all tests on SQLite and PostgreSQL; installs what they need, starts a throw-away PostgreSQL
	@tools/needs.sh postgresql ffmpeg cc
	go vet ./...
	CGO_ENABLED=1 tools/with-postgres.sh go test -race -timeout 20m ./...

chaos: ## kill, stop and cut off workers, servers and PostgreSQL for CHAOS_FOR (4m), and check that nothing is lost or done twice; figures in build/chaos.json
	@tools/needs.sh postgresql
	CGO_ENABLED=0 go run ./test/chaos -for $(CHAOS_FOR) -figures build/chaos.json

chaos-lease: ## with default settings: how long until the tasks of a killed worker run elsewhere (5 kills, 4 minutes; figures in build/lease.json)
	@tools/needs.sh postgresql
	CGO_ENABLED=0 go run ./test/chaos -measure 5 -figures build/lease.json

bench: build bin/bench ## Drover beside River and DBOS, and by itself, on a throw-away PostgreSQL that syncs to disk; writes docs/performance.md (20 minutes; leave the machine alone)
	@tools/needs.sh postgresql ffmpeg
	@DURABLE=1 tools/with-postgres.sh bin/bench

bench-long: build bin/bench ## the long workloads, and Asynq and Temporal (2 hours)
	@tools/needs.sh postgresql redis-server
	@$(MAKE) -s bin/temporal/server || echo "Temporal's server could not be built from its module: it is left out" >&2
	@DURABLE=1 tools/with-postgres.sh bin/bench -long

bin/temporal/server:
	GOBIN=$(CURDIR)/bin/temporal go install go.temporal.io/server/cmd/server@$(TEMPORAL) go.temporal.io/server/cmd/tools/sql@$(TEMPORAL)

bench-check: bin/bench ## in half a minute: is Drover as fast beside River as bench/floor.json asks? RECORD=1 records what it is now
	@tools/needs.sh postgresql
	@DURABLE=1 tools/with-postgres.sh bin/bench $(if $(RECORD),-record,-check)

.PHONY: bin/bench
bin/bench:
	cd bench && $(GO_BUILD) -o ../bin/bench .

upgrade: ## a server of the schema version before beside one of this tree, through a migration under load
	@tools/needs.sh postgresql
	@tools/with-postgres.sh tools/upgrade.sh

SEEDS ?= 2000
BASE  ?= 1
sim: ## deterministic simulation of the engine; SEEDS=10000 for more of them, BASE=2 for others; figures in build/sim.json
	go test ./test/sim -count=1 -timeout 60m -v -seeds=$(SEEDS) -base=$(BASE) -figures=$(CURDIR)/build/sim.json

mutants: ## plant known bugs in a copy of the tree, one at a time, and see that the tests find each; ONLY='name|…' for some
	@tools/needs.sh postgresql
	@tools/with-postgres.sh go run ./test/mutants -only '$(ONLY)' -figures build/mutants.json

CONFORMANCE_FOR ?= 60s
conformance: ## the engine on SQLite and PostgreSQL beside a model, step by step and with clients at once, for CONFORMANCE_FOR (60s) each; figures in build/conformance.json
	@tools/needs.sh postgresql
	@tools/with-postgres.sh go test ./internal/store/storetest -count=1 -timeout 30m -v -run 'Model|Order' -conformance=$(CONFORMANCE_FOR) -figures=$(CURDIR)/build/conformance.json

dag-model: ## 200,000 random graphs beside a naive model of them, and 2,000 on the engine (some minutes; CASES=, GRAPHS= for others)
	go test ./internal/dag -run BoardAgrees -count=1 -timeout 60m -v -cases=$(or $(CASES),200000)
	go test ./internal/engine -run 'RandomGraphs/sqlite' -count=1 -timeout 60m -graphs=$(or $(GRAPHS),2000)

reliability: sim mutants chaos chaos-lease conformance ## all of these, and docs/reliability.md written anew from their figures (some 40 minutes; SEEDS=10000)
	go run ./test/reliability

fuzz: ## every decoder and every property with the fuzzer, FUZZTIME (10s) each; TARGET=Routes for those with that in their name
	@tools/fuzz.sh $(TARGET)

check: ## what is quick to check: formatting, vet, build, docs, go.mod, shell scripts' syntax
	@tools/check.sh

lint: ## staticcheck
	go run $(STATICCHECK) ./...
	cd bench && go run $(STATICCHECK) ./...

golangci: ## golangci-lint with .golangci.yml (its first run compiles it: some minutes)
	go run $(GOLANGCI) run ./...

docs-check:
	go test $(DOCS)
	go test ./internal/arch

docs: ## write the documents that are printed from code anew
	go test $(DOCS) -update
	@git --no-pager diff --stat

clean: ## bin/ and build/ (the demo's state is ./.drover/demo; FRESH=1 make demo throws it away)
	rm -rf bin build
