#!/usr/bin/env bash
# Installs a real kube-apiserver, kube-controller-manager and etcd for the tests beside this
# file.
#
#   install.sh            install what is missing; nothing to do is no error
#   install.sh --check    exit code 0 if installed, 3 if not; changes nothing
#
# Both are built from the Go module that apiserver/go.mod pins and kept under
# KUBERNETES_TEST_HOME (default: sluice-kubernetes in the user's cache folder): 220 MB,
# about 10 minutes of two cores once, and 4 GB of Go's build cache meanwhile. etcd is taken
# from PATH (ETCD names another one); where there is none, it is installed from Debian's
# package, which needs root.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
home=${KUBERNETES_TEST_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice-kubernetes}
# What is installed is named by what it was built from.
version=$(awk '$1 == "require" && $2 == "k8s.io/kubernetes" { print $3 } $1 == "k8s.io/kubernetes" { print $2 }' "$here/apiserver/go.mod" | head -n 1)
bin=$home/$version-$(cat "$here"/apiserver/{go.mod,go.sum,tools.go} | sha256sum | cut -c1-12)

fail() { echo "install.sh: $*" >&2; exit 1; }
find_etcd() { type -P "${ETCD:-etcd}"; }

built() { [ -x "$bin/kube-apiserver" ] && [ -x "$bin/kube-controller-manager" ]; }

if built && find_etcd >/dev/null; then
	echo "kube-apiserver $version is installed in $bin, etcd is $(find_etcd)"
	exit 0
fi
if [ "${1:-}" = --check ]; then
	echo "kube-apiserver $version or etcd is not installed (test/kubernetes/install.sh does it)"
	exit 3
fi
[ $# -eq 0 ] || fail "unknown argument $1"

if ! find_etcd >/dev/null; then
	[ -z "${ETCD:-}" ] || fail "ETCD=$ETCD is no program"
	{ command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; } ||
		fail "etcd is needed: install it (Debian: etcd-server), or name it with ETCD=/path/to/etcd"
	echo "installing etcd"
	apt-get install -qq -y --no-install-recommends etcd-server >/dev/null ||
		{ apt-get update -qq && apt-get install -qq -y --no-install-recommends etcd-server >/dev/null; }
	find_etcd >/dev/null || fail "Debian's etcd-server brought no etcd"
fi

if ! built; then
	mkdir -p "$home"
	free_kib=$(df -Pk "$home" | awk 'NR == 2 { print $4 }')
	[ "$free_kib" -gt $((6 << 20)) ] || fail "$home has $((free_kib >> 20)) GiB free; 6 GiB are needed"
	echo "building kube-apiserver and kube-controller-manager $version into $bin"
	build=$(mktemp -d "$home/build-XXXXXX")
	trap 'rm -rf "$build"' EXIT
	# The version is what /version answers; without it the server calls itself v0.0.0.
	(cd "$here/apiserver" && CGO_ENABLED=0 GOFLAGS=-mod=readonly go build -trimpath -buildvcs=false \
		-ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version" \
		-o "$build/" k8s.io/kubernetes/cmd/kube-apiserver k8s.io/kubernetes/cmd/kube-controller-manager)
	rm -rf "$home"/v[0-9]*-????????????
	chmod 755 "$build"
	mv "$build" "$bin"
	trap - EXIT
fi
echo "installed in ${SECONDS} s: $bin, $(find_etcd)"
