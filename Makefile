# Thin targets; what they do is in scripts/ and demo/.
.DEFAULT_GOAL := help
.PHONY: help setup build package test fuzz demo clean distclean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## fetch what tests and demo need into .cache (embedder, llama.cpp with a small model, clients)
	@scripts/setup.sh

build: ## the release binary: target/release/cema-router
	@scripts/check_tools.sh
	cargo build --release --locked --bin cema-router

package: ## the Debian package: target/debian/*.deb
	@scripts/package.sh $(ARGS)

test: setup ## everything that must pass: format, lints, tests, documentation, dependencies
	@scripts/test.sh

fuzz: ## fuzz each parser of foreign bytes for a minute; longer: make fuzz ARGS="600 sse_scanner"
	@scripts/fuzz.sh $(ARGS)

demo: setup ## three real model servers behind the router; more: make demo ARGS="--kill-one"
	@.cache/sdk/bin/python -B demo/demo.py $(ARGS)

clean: ## remove build outputs and what the demo recorded
	cargo clean
	rm -rf .cache/demo fuzz/target

distclean: clean ## also remove everything that was fetched
	rm -rf .cache
