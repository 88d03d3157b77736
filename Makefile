# SPDX-License-Identifier: Apache-2.0
# Entry points. The build itself is Meson's (meson.build); `meson setup build && ninja -C build` works as well.
.DEFAULT_GOAL := help
.PHONY: help demo test bench fmt asan tsan fuzz build install clean bootstrap

help: ## this list
	@echo "heft: make TARGET"
	@sed -n 's/^\([a-z]*\):[^#]*## /  \1\t/p' Makefile | expand -t 14

demo: bootstrap build ## install, build, and run the whole story on a real model
	scripts/demo

test: bootstrap ## install, then run every check and test; last line: N passed, N failed
	scripts/test

bench: build ## benchmarks against the machine's own limits
	scripts/bench

fmt: ## format the C sources
	@git ls-files --cached --others --exclude-standard '*.c' '*.h' '*.cu' | xargs clang-format -i

asan: ## tests under AddressSanitizer and UndefinedBehaviorSanitizer
	scripts/test asan

tsan: ## tests of the threaded layers under ThreadSanitizer
	scripts/test tsan

fuzz: ## fuzz every target for a few seconds
	scripts/fuzz --smoke

build: build/build.ninja ## build everything into build/
	ninja -C build

build/build.ninja:
	meson setup build

install: build ## install (DESTDIR and meson's prefix count)
	meson install -C build --no-rebuild

clean: ## remove everything that was built; .venv stays
	rm -rf build build-*

bootstrap: ## install Debian and Python packages that are missing
	@scripts/bootstrap
