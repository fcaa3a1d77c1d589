# steerd: `make help` lists the targets.

CARGO ?= cargo
ARGS  ?=
TOOLS := $(CURDIR)/target/tools
export PATH := $(TOOLS)/bin:$(PATH):/usr/sbin:/sbin

.DEFAULT_GOAL := help
# apt and cargo lock what they work on.
.NOTPARALLEL:
.PHONY: help run live page playground docs test check soak soak-daemon soak-interface conformance conformance-libmlx5 releases report-kit install install-files third-party uninstall package e2e fleets lint bench budgets budgets-mlx5 audit fuzz asan miri miri-ready loom \
  deps cargo cargo-deb cargo-deny cargo-fuzz

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Groups of .ci/deps. Each target below depends on the groups it needs, as `deps-GROUP`.
FOR ?= build test promtool nfdump feeds
deps: cargo ## install with apt what is missing (FOR='build test promtool nfdump feeds'); the other targets do this themselves
	@.ci/deps $(FOR)

deps-%: cargo
	@.ci/deps $*

cargo:
	@command -v $(CARGO) >/dev/null || { echo "cargo is missing: install Rust 1.89 or newer with rustup" >&2; exit 1; }

run: deps-build ## build, then steer generated traffic on the soft NIC: no NIC, no privileges (ARGS='--for 10s')
	$(CARGO) build --profile try --no-default-features --locked --package steerd
	./target/try/steerd run --demo $(ARGS)

live: deps-build deps-live ## build, then enforce a policy on a veth pair between two namespaces: ordinary programs, who got what (root)
	$(CARGO) build --profile try --no-default-features --locked --package steerd
	@$(if $(filter 0,$(shell id -u)),,sudo) .ci/live target/try/steerd

page: deps-build deps-page ## build, then try the page for browsers in headless Chromium, with axe-core; screenshots are in target/page
	$(CARGO) build --profile try --no-default-features --locked --package steerd
	.ci/page target/try/steerd

playground: deps-build deps-playground ## build the page that checks, explains and compares policies in a browser (target/playground), and try it in Chromium
	$(CARGO) build --profile playground --locked --target wasm32-wasip1 --package playground
	crates/playground/page/assemble target/wasm32-wasip1/playground/playground.wasm target/playground
	.ci/playground target/playground

# Cargo builds a dependency once for each set of features, which depends on the packages of the command. These are those of
# `cargo test --workspace`; PROGRAMS are only those that the conformance needs.
EVERYTHING := --workspace --lib --bins --tests
PROGRAMS   ?= --package softnic-preload --package conformance

# Without REPOSITORY the files that pages link to are part of the site.
docs: deps-mdbook ## the documentation as a site with a search: target/docs (REPOSITORY=https://HOST/OWNER/NAME/blob/main for links to its files)
	.ci/book target/book $(REPOSITORY)
	mdbook build target/book --dest-dir $(CURDIR)/target/docs
	.ci/book --check target/docs

test: deps-build deps-test deps-promtool deps-nfdump deps-feeds ## every test; with STEERD_CORPORA=DIR those that need the captures and rule sets too
	@# The test of `make install` installs what is built, and `cargo test` leaves the plugin where it cannot be found.
	$(CARGO) build --locked $(EVERYTHING)
	.ci/test $(CARGO) test --workspace --locked

# What is measured is what users build: incremental builds, which the environment may ask for, inline otherwise.
budgets budgets-mlx5 bench: export CARGO_INCREMENTAL := 0

# Counted by valgrind: the load of the machine does not matter.
budgets: deps-build deps-test ## the instructions of the hot paths beside their budgets (UPDATE=1 sets benches/budgets.tsv anew)
	$(if $(UPDATE),STEERD_UPDATE_BUDGETS=1) $(CARGO) bench --locked --package steerd-benches --features valgrind --bench instructions

budgets-mlx5: deps-build deps-test ## the instructions of the worker on rdma-core's mlx5 provider
	$(CARGO) build --release --locked --package softnic-preload --features valgrind
	$(CARGO) bench --locked --package steerd-benches --features valgrind --bench instructions -- mlx5

check: deps-build ## fast checks: format, clippy and unit tests of the packages that differ from BASE and of their users
	CARGO=$(CARGO) .ci/check

# Property tests draw the same cases everywhere, so that a run fails for nothing but the change.
PROPTEST_RNG_SEED ?= 1
test asan miri: export PROPTEST_RNG_SEED := $(PROPTEST_RNG_SEED)

soak: deps-build ## all property tests with ever new seeds and PROPTEST_CASES (20000) cases, for SOAK_SECONDS (3600) or until one fails
	CARGO=$(CARGO) .ci/soak

soak-daemon: deps-build ## the daemon under traffic, reloads, changes of rules, scrapes, idle clients and SIGSTOP, for SOAK_SECONDS (600)
	$(CARGO) build --release --locked --package steerd
	.ci/soak-daemon target/release/steerd

soak-interface: deps-build deps-soak-interface ## a policy on a veth pair under traffic, reloads, flaps, other programs' attempts and SIGKILL, for SOAK_SECONDS (600) (root)
	$(CARGO) build --release --locked --package steerd
	@$(if $(filter 0,$(shell id -u)),,sudo) SOAK_SECONDS=$${SOAK_SECONDS:-600} .ci/soak-interface target/release/steerd

# libpcap with RDMA support, from a checkout that is given: Debian builds it without.
LIBPCAP_BUILD := $(CURDIR)/target/libpcap
conformance: deps-build deps-conformance $(if $(LIBPCAP),deps-libpcap) ## rdma-core's own tests, ibverbs-utils and perftest on the soft NIC (ROWS='part of a name', LIBPCAP=checkout for rdmasniff); our own suite on STEERD_TEST_DEVICE
	$(CARGO) build --locked $(PROGRAMS)
	@if [ -n "$(LIBPCAP)" ]; then \
	  cmake -S "$(LIBPCAP)" -B $(LIBPCAP_BUILD) -DBUILD_WITH_LIBNL=OFF -DDISABLE_DBUS=ON -DDISABLE_BLUETOOTH=ON >/dev/null && \
	  $(MAKE) -s -C $(LIBPCAP_BUILD) writecaptest findalldevstest >/dev/null; fi
	@$(if $(LIBPCAP),export SOFTNIC_LIBPCAP=$(LIBPCAP_BUILD)/run;) if [ -z "$$STEERD_TEST_DEVICE" ]; then \
	  ./target/debug/softnic-conformance --report target/conformance $(ROWS); fi
	./target/debug/conformance $(CONFORMANCE_ARGS)

conformance-libmlx5: deps-build ## records what the suite's rows answer on rdma-core's own mlx5 provider, and writes docs/generated/conformance.md
	$(CARGO) build --locked $(PROGRAMS)
	./target/debug/softnic exec --method mlx5 --mtu 1500 --wire link:conformance:a -- \
	  ./target/debug/conformance --device mlx5_0 --link conformance --record crates/conformance/src/libmlx5.tsv
	./target/debug/conformance --write-docs

releases: deps-build deps-releases ## the soft NIC under other releases of libibverbs (RDMA_CORE=checkout, RELEASES='v50.0 ..')
	$(CARGO) build --locked $(PROGRAMS)
	CARGO=$(CARGO) crates/softnic-preload/releases.sh '$(RDMA_CORE)' $(RELEASES)

report-kit: deps-build ## an archive and a container image for reports of devices on hosts without Rust and rdma-core: target/report-kit/steerd-report-ARCH.{tar.gz,oci.tar}
	[ "$(BUILT)" != target/release ] || $(CARGO) build --release --locked --package steerd --package conformance
	@mkdir -p target/report-kit
	deploy/report-kit/build $(BUILT) target/report-kit
	deploy/report-kit/image target/report-kit/steerd-report-$$(uname -m) target/report-kit

# Where `make install` puts things; DESTDIR goes before all of it.
PREFIX      ?= /usr/local
SYSCONFDIR  ?= /etc
UNITDIR     ?= $(PREFIX)/lib/systemd/system
SYSUSERSDIR ?= $(PREFIX)/lib/sysusers.d
# What was built, and where.
BUILT ?= target/release
share := $(DESTDIR)$(PREFIX)/share
doc := $(share)/doc/steerd
# The unit, the settings and the man pages name the places of a package.
installed_paths = 's|/usr/bin/|$(PREFIX)/bin/|g; s|/usr/share/|$(PREFIX)/share/|g; s|/etc/|$(SYSCONFDIR)/|g'

# Of a checkout only what git knows. The report kit is made in a checkout alone.
pages = $$({ git ls-files *.md config deploy docs systemd 2>/dev/null | grep . || find *.md config deploy docs systemd -type f; } | \
  grep -v ^deploy/report-kit/)

install: deps-build ## steerd, `softnic` and its plugin, unit, account, settings, man pages, completions, documentation (PREFIX, DESTDIR, SYSCONFDIR)
	$(CARGO) build --release --locked $(PACKAGED)
	$(MAKE) --no-print-directory third-party install-files

# What is installed, and packaged.
programs := steerd softnic-preload conformance
PACKAGED := $(addprefix --package ,$(programs))

# The licences of the crates that the programs contain.
third-party:
	CARGO=$(CARGO) packaging/third-party target/third-party.txt $(programs)

# Without Cargo. Settings that are there already are kept. The pages are installed with the folders that they link to, in the
# layout of the repository, so that their links and commands hold in $(doc), too.
install-files:
	@[ -e target/third-party.txt ] || { echo "target/third-party.txt is missing: run \`make third-party\` first" >&2; exit 1; }
	install -D -m 755 $(BUILT)/steerd $(DESTDIR)$(PREFIX)/bin/steerd
	install -D -m 755 $(BUILT)/steerd-probe $(DESTDIR)$(PREFIX)/bin/steerd-probe
	install -D -m 755 $(BUILT)/softnic $(DESTDIR)$(PREFIX)/bin/softnic
	install -D -m 644 $(BUILT)/libsoftnic_preload.so $(DESTDIR)$(PREFIX)/lib/softnic/libsoftnic-rdmav34.so
	for version in 57 59 64 65; do \
	  ln -sf libsoftnic-rdmav34.so $(DESTDIR)$(PREFIX)/lib/softnic/libsoftnic-rdmav$$version.so; done
	install -d $(DESTDIR)$(UNITDIR) $(share)/man/man1 $(share)/man/man5 $(doc) $(DESTDIR)$(SYSCONFDIR)/steerd
	sed $(installed_paths) systemd/steerd.service > $(DESTDIR)$(UNITDIR)/steerd.service
	chmod 644 $(DESTDIR)$(UNITDIR)/steerd.service
	@# Of earlier releases; with it a reload would read the policy twice.
	rm -f $(DESTDIR)$(UNITDIR)/steerd.service.d/reload.conf
	install -D -m 644 systemd/steerd.sysusers $(DESTDIR)$(SYSUSERSDIR)/steerd.conf
	for file in steerd.toml policy.toml; do \
	  [ -e $(DESTDIR)$(SYSCONFDIR)/steerd/$$file ] || \
	    { sed $(installed_paths) config/$$file > $(DESTDIR)$(SYSCONFDIR)/steerd/$$file && \
	      chmod 644 $(DESTDIR)$(SYSCONFDIR)/steerd/$$file; } || exit 1; done
	for file in $(pages); do install -D -m 644 $$file $(doc)/$$file || exit 1; done
	@# Comments are for the test of the pages: of one line, or of several.
	find $(doc) -name '*.md' -exec sed -i -e '/^ *<!--.*-->$$/d' -e '/^ *<!--/,/-->$$/d' {} +
	ln -sfn config/examples $(doc)/examples
	install -m 644 packaging/copyright $(doc)/copyright
	install -m 644 target/third-party.txt $(doc)/third-party.txt
	rm -rf target/generated && $(BUILT)/steerd generate target/generated && $(BUILT)/softnic generate target/generated
	@# steerd runs this program, whose options are its own.
	echo .so man1/steerd-devices.1 > target/generated/steerd-probe.1
	sed -i $(installed_paths) target/generated/*.[15]
	install -m 644 target/generated/*.1 $(share)/man/man1/
	install -m 644 target/generated/*.5 $(share)/man/man5/
	install -D -m 644 target/generated/steerd.bash $(share)/bash-completion/completions/steerd
	install -D -m 644 target/generated/steerd.fish $(share)/fish/vendor_completions.d/steerd.fish
	install -D -m 644 target/generated/_steerd $(share)/zsh/site-functions/_steerd

uninstall: ## what `make install` installed, with the same PREFIX; settings stay
	rm -f $(DESTDIR)$(PREFIX)/bin/steerd $(DESTDIR)$(PREFIX)/bin/steerd-probe $(DESTDIR)$(PREFIX)/bin/softnic
	rm -f $(DESTDIR)$(SYSUSERSDIR)/steerd.conf
	rm -f $(DESTDIR)$(UNITDIR)/steerd.service $(DESTDIR)$(UNITDIR)/steerd.service.d/reload.conf
	-rmdir $(DESTDIR)$(UNITDIR)/steerd.service.d
	rm -f $(share)/man/man1/steerd.1 $(share)/man/man1/steerd-*.1 $(share)/man/man1/softnic*.1
	rm -f $(share)/man/man5/steerd.toml.5 $(share)/man/man5/steerd-policy.5 $(share)/bash-completion/completions/steerd
	rm -f $(share)/fish/vendor_completions.d/steerd.fish $(share)/zsh/site-functions/_steerd
	rm -rf $(DESTDIR)$(PREFIX)/lib/softnic $(doc)

# Packages are made of the tree of `make install-files`. cargo-deb strips what is below target/release alone, and keeps the symbols
# for a package of their own.
PACKAGE := target/release/package
version = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
MAINTAINER ?= $(shell sed -n 's/^maintainer = "\(.*\)"/\1/p' crates/steerd/Cargo.toml)
# The time of the files: that of the last change, so that the same sources give the same packages.
package: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || date +%s)

package: deps-build deps-package cargo-deb ## a Debian package, an rpm and a container image of a release build: target/package (BUILT=folder, MAINTAINER='Name <address>')
	[ "$(BUILT)" != target/release ] || $(CARGO) build --release --locked $(PACKAGED)
	rm -rf $(PACKAGE) target/package && mkdir -p $(PACKAGE) target/package
	umask 022 && $(MAKE) --no-print-directory third-party install-files DESTDIR=$(PACKAGE)/root PREFIX=/usr SYSCONFDIR=/etc
	gzip -9n $(PACKAGE)/root/usr/share/man/*/*
	packaging/rpm $(PACKAGE)/root target/package '$(version)'
	packaging/image $(PACKAGE)/root target/package
	install -D -m 644 packaging/debian/lintian-overrides $(PACKAGE)/root/usr/share/lintian/overrides/steerd
	packaging/debian/changelog '$(version)' '$(MAINTAINER)' > $(PACKAGE)/changelog
	@# Quiet: it would warn that the tree has the unit and the copyright, for which it has ways of its own.
	cargo-deb --no-build --locked --package steerd --dbgsym --compress-debug-symbols=zlib --maintainer '$(MAINTAINER)' --quiet --output target/package
	for file in target/package/*.ddeb; do mv $$file $${file%.ddeb}.deb; done
	@# The package of debug symbols is as cargo-deb makes it, without the changelog that Debian wants of those that are uploaded.
	lintian --allow-root --fail-on error,warning,info target/package/steerd_*.deb

e2e: deps-e2e deps-fleets deps-prometheus ## the Debian package in a container with systemd: installation, traffic, reloads, Prometheus with the alerts, rollouts by Ansible, watchdog, upgrade, purge (root; make package first)
	@$(if $(filter 0,$(shell id -u)),,sudo) .ci/e2e target/package/steerd_*.deb

fleets: deps-fleets ## deploy/kubernetes against the published schemas, deploy/ansible by ansible-lint: no cluster, no hosts
	.ci/fleets --self-test && .ci/fleets

# The most exposure that the unit may have, in tenths (systemd-analyze(1), --threshold).
UNIT_EXPOSURE := 18
lint: deps-build deps-test deps-promtool cargo-deny ## formatting, clippy, dependencies, unit file, alert rules
	.ci/field-names --self-test && .ci/field-names
	.ci/comments --self-test && .ci/comments
	.ci/structure --self-test && .ci/structure
	.ci/links
	.ci/build-budgets --self-test && .ci/build-budgets
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps --locked --quiet
	cargo-deny --locked check bans licenses sources
	@if command -v promtool >/dev/null; then \
	  promtool check rules deploy/prometheus/steerd.rules.yml deploy/prometheus/steerd.recording.yml && \
	  promtool test rules deploy/prometheus/steerd.rules.test.yml deploy/prometheus/steerd.recording.test.yml && \
	  promtool check config --syntax-only deploy/prometheus/prometheus.yml; \
	else echo "NOT RUN: promtool check rules: promtool is missing" >&2; [ -z "$$CI" ]; fi
	@rm -rf target/lint && mkdir -p target/lint
	@sed 's|/usr/bin/steerd|/bin/true|g' systemd/steerd.service > target/lint/steerd.service
	systemd-analyze verify --man=no target/lint/steerd.service
	systemd-analyze security --offline=true --threshold=$(UNIT_EXPOSURE) target/lint/steerd.service >target/lint/exposure || \
	  { grep -v '✓' target/lint/exposure; exit 1; }

bench: deps-build deps-bench deps-openvswitch ## speed, side by side in one run (release build); with STEERD_CORPORA=DIR the real rule sets
	$(CARGO) build --release --locked --package steerd --package softnic-preload
	@[ ! -d $(TOOLS)/openvswitch ] || export STEERD_OVS_ROOT=$(TOOLS)/openvswitch; \
	$(CARGO) bench --locked --package steerd-benches $(ARGS)

audit: cargo-deny ## known vulnerabilities in the dependencies (needs the network)
	cargo-deny --locked check advisories

# What only a nightly compiler offers; a stable one does it too when it is told so.
nightly = $(shell if $(CARGO) +nightly --version >/dev/null 2>&1; then echo $(CARGO) +nightly; \
  else echo env RUSTC_BOOTSTRAP=1 $(CARGO); fi)
HOST = $(shell $(CARGO) -vV | sed -n 's/^host: //p')
FUZZ_TARGETS ?= packet policy import diff api memif provider uverbs
# What each begins with, beside what earlier runs left in fuzz/corpus.
seeds_policy := crates/policy/tests/policies
seeds_import := crates/policy/tests/listings
seeds_provider := fuzz/seeds/provider

fuzz: deps-build cargo-fuzz ## the fuzz targets for FUZZ_SECONDS each, one on each core (FUZZ_TARGETS='provider'); crashes stay in fuzz/artifacts
	@CARGO='$(nightly)' .ci/fuzz $(foreach target,$(FUZZ_TARGETS),'$(strip $(target) $(seeds_$(target)))')

# Leaks are not looked for: tests close contexts with objects in them, as programs that end do. Properties are tried on few
# cases: `make test` tries them on all, and here a case takes ten times as long.
asan: deps-build ## the tests of the crates with unsafe code, under the address sanitizer
	CARGO_TARGET_DIR=target/asan RUSTFLAGS=-Zsanitizer=address ASAN_OPTIONS=detect_leaks=0 PROPTEST_CASES=16 \
	  $(nightly) test --locked --target $(HOST) --lib --tests -p hugemem -p verbs -p shm -p tap -p xdp -p wire -p flow-table -p softnic -p softnic-verbs -p softnic-mlx5

miri: deps-build ## what Miri can run of the crates with unsafe code: hugemem, verbs, softnic and softnic-verbs
	@$(miri_ready) || exit 0; set -x; \
	export CARGO_TARGET_DIR=target/miri MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=2; \
	$(CARGO) +nightly miri test --locked -p hugemem --lib -- free_list:: names_read_back --skip number_of_blocks && \
	$(CARGO) +nightly miri test --locked -p verbs --lib && \
	$(CARGO) +nightly miri test --locked -p softnic --lib -- \
	  ring:: memory:: slab:: work:: check_sequence known_answers_hold && \
	$(CARGO) +nightly miri test --locked -p softnic-verbs --lib -- provider::held::

# Changes the nightly toolchain, which others may be using.
miri-ready: deps-build
	@$(miri_ready) || true

# Nightly with Miri, and its standard library, which `cargo miri setup` builds from packages of the registry. What cannot be
# had after three tries is reported as a check that did not run.
define miri_ready
{ $(CARGO) +nightly miri --version >/dev/null 2>&1 || \
  { command -v rustup >/dev/null && \
    rustup toolchain install nightly --profile minimal --component miri,rust-src >/dev/null 2>&1; } || \
  { echo "NOT RUN: miri: there is no nightly toolchain with the components miri and rust-src, and rustup cannot fetch one" >&2; false; }; } && \
{ for pause in 5 30 0; do $(CARGO) +nightly miri setup && exit_code=0 && break; exit_code=1; sleep $$pause; done; [ $$exit_code = 0 ] || \
  { echo "NOT RUN: miri: \`cargo +nightly miri setup\` failed three times, see above" >&2; false; }; }
endef

# What the models run is optimised, and none of what they only link with.
loom_optimised := loom generator softnic flow-table ring-cursor
loom: deps-build ## the rings of softnic, the cursors below rings, the flow table and the wake-ups, in every order that the memory model allows
	CARGO_TARGET_DIR=target/loom RUSTFLAGS='--cfg loom' CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
	  CARGO_PROFILE_RELEASE_DEBUG=0 CARGO_PROFILE_RELEASE_OPT_LEVEL=0 $(CARGO) test --locked \
	  $(foreach crate,$(loom_optimised),--config profile.release.package.$(crate).opt-level=3) \
	  -p softnic -p flow-table -p parking -p ring-cursor --lib --release -- model:: left_right:: flag::

# Without optimisation: each runs for seconds, and building it takes minutes.
install_tool = CARGO_PROFILE_DEV_DEBUG=0 $(CARGO) install --locked --quiet --debug --root $(TOOLS)

# Of one version, because it decides what is in the package.
CARGO_DEB := 3.8.0
cargo-deb:
	@[ "$$(cargo-deb --version 2>/dev/null)" = 'cargo-deb $(CARGO_DEB)' ] || $(install_tool) cargo-deb@$(CARGO_DEB)

cargo-fuzz:
	@command -v cargo-fuzz >/dev/null || $(install_tool) cargo-fuzz

cargo-deny:
	@command -v cargo-deny >/dev/null || $(install_tool) cargo-deny
