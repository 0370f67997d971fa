# `make train` trains a network from a bare Debian 12 or 13 with Go; `make test` checks it all, `make test-full` with all networks and
# many draws. Each installs what is missing.

# The run of `make train`: about 91 % in about five minutes on two cores. A run that was stopped goes on.
TRAIN_OUT = out/fashion-mnist
TRAIN_FLAGS = --model resnet20 --data fashion-mnist --stages 2 --chunks 8 --checkpoint except_last --batch 256 --epochs 2 \
	--lr 0.2 --nesterov --weight-decay 5e-4 --lr-schedule cosine --warmup 40 --memory-limit 256MiB --save-every 100 \
	--out $(TRAIN_OUT) --trace $(TRAIN_OUT)/step.trace.json $(if $(wildcard $(TRAIN_OUT)/step-*),--resume)

# The run that ends `make test`: the same path end to end, in seconds.
SMOKE_FLAGS = --model resnet20 --data fashion-mnist --stages 2 --chunks 8 --checkpoint except_last --batch 64 \
	--steps 20 --format json --out out/smoke

# Packages that build and are tested without cgo.
PURE = ./internal/disk ./internal/launch ./internal/stream ./plan ./schedule ./remat/... ./internal/solver ./internal/planfile ./safetensors ./tokenizer ./data ./internal/trace ./internal/metrics

# Packages whose own code has goroutines; in others nothing races. Of SOME_RACY, `make test` looks at the tests that RACES names.
RACY = ./internal/launch ./internal/report ./data
SOME_RACY = ./internal/solver ./pipe
FULL_RACY = ./group ./internal/link ./profile ./train
RACES = KeepTheirLimits AgreesWithTheRecurrence \
	Concurrent CallsFromWithin RunAnother FailedRunsBesideOthers UpdatesBesideRuns TestTransparency$$ \
	TransparencyOfRandomModels TransparencyOfReplicas TransparencyOfDirectWays MishapInOne CloseWaits CancelledRun TestStreamsOf \
	TroubleAtAnyTurn FailureEndsWaits FailureBesideASum PipesLeaveNothing
space := $(subst ,, )

DEBIAN_PYTHON = /usr/bin/python3
BUILD = go build -buildvcs=auto -o bin/penstock ./cmd/penstock

.PHONY: help build train test test-full test-avx2 bench dist bundle fixtures fmt clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile

# TORCH names a libtorch: a version of PyPI or a folder. Without it and without libtorch-dev, make takes the torch that python3 imports.
ifeq (,$(TORCH)$(CGO_CXXFLAGS)$(CGO_LDFLAGS)$(wildcard /usr/include/torch/library.h))
TORCH := $(shell scripts/torch --find)
endif
ifneq (,$(TORCH))
# Runs make again for the same target, with cgo's flags for that libtorch.
build train test test-full test-avx2 bench:
	@scripts/torch $(if $(filter bench,$@),--python) "$(TORCH)" $(MAKE) --no-print-directory TORCH= $@
else

# Without paths in the build, all checkouts share Go's cache, and the C++ in it. CUDA is in the build where libtorch has it.
export GOFLAGS := $(strip -trimpath $(GOFLAGS) $(shell scripts/cuda))

build: ## bin/penstock
	@scripts/setup
	$(BUILD)

train: ## train ResNet-20 on Fashion-MNIST in a pipeline of two stages, into out/fashion-mnist; goes on if stopped
	@scripts/setup data
	$(BUILD)
	bin/penstock train $(TRAIN_FLAGS)

test: ## format, vet, tests (races too), and a short training run: ten minutes on two cores
	@scripts/setup test
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "not gofmt'ed (make fmt):"; echo "$$unformatted"; exit 1; }
	go vet -cgocall=false ./...  # cgocall reads files by the path of the checkout that filled the cache
	cd bench && go vet ./... && go test -vet=off ./...
	CGO_ENABLED=0 go build $(PURE)
	go test -vet=off -race -timeout 15m -skip FashionMNIST $(RACY)
	go test -vet=off -race -timeout 15m $(SOME_RACY) -rapid.checks=5 -run '$(subst $(space),|,$(strip $(RACES)))'
	go test -vet=off -timeout 30m ./...
	$(BUILD)
	@rm -rf out/smoke && mkdir -p out/smoke
	bin/penstock train $(SMOKE_FLAGS) > out/smoke/steps.jsonl
	@tail -n 1 out/smoke/steps.jsonl | grep -q '"done": *true' || { echo "the training run did not end in \"done\":true:"; tail -n 3 out/smoke/steps.jsonl; exit 1; }

test-full: ## tests with all networks, cuts and policies, and many draws: hours
	@scripts/setup test
	PENSTOCK_TEST=full go test -count=1 -race -timeout 2h $(RACY)
	PENSTOCK_TEST=full go test -count=1 -race -timeout 2h $(SOME_RACY) $(FULL_RACY) -rapid.checks=20
	PENSTOCK_TEST=full go test -count=1 -timeout 3h ./...

test-avx2: ## tests whose results depend on the instruction set, as on a processor without AVX-512
	@scripts/setup
	scripts/avx2 go test -timeout 30m ./torch ./nn ./internal/segment ./internal/pins
	scripts/avx2 go test -timeout 30m ./pipe -run Transparency

bench: ## benchmarks beside PyTorch (TORCH=2.15.0 installs it) and torchgpipe; BENCH_FLAGS=--quick takes minutes
	@scripts/setup
	@scripts/setup opponent
	@scripts/bench $(BENCH_FLAGS)

endif

dist: ## the binary for this Debian with its checksum, in out
	@scripts/setup
	@scripts/dist

bundle: ## one file with sources, Go modules and the Go toolchain, out/penstock-bundle.tar.xz, for machines without network
	@scripts/bundle/make

fixtures: ## regenerate the parity fixtures with Debian's PyTorch
	@scripts/setup python
	$(DEBIAN_PYTHON) scripts/fixtures/generate.py

fmt: ## gofmt everything
	gofmt -w .

clean: ## remove binaries; trained models in out/ stay
	rm -rf bin
