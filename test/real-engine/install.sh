#!/usr/bin/env bash
# Installs a real vLLM for CPUs and makes the tiny model the tests run on it.
#
#   install.sh            install what is missing; nothing to do is no error
#   install.sh --check    exit code 0 if installed, 3 if not; changes nothing
#
# Everything is put under REAL_ENGINE_HOME (default: sluice-real-engine in the
# user's cache folder): about 6.5 GB, a few minutes. Needs CPython 3.12 (PYTHON
# names another interpreter than those looked for) and a package index.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
home=${REAL_ENGINE_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice-real-engine}
venv=$home/venv model=$home/model
# What is installed is named by what it was installed from.
stamp=$home/installed-$(cat "$here"/{requirements.txt,fit.py,tinymodel.py} | sha256sum | cut -c1-12)

fail() { echo "install.sh: $*" >&2; exit 1; }

if [ -e "$stamp" ]; then
	echo "vLLM is installed in $home"
	exit 0
fi
if [ "${1:-}" = --check ]; then
	echo "vLLM is not installed in $home (test/real-engine/install.sh does it)"
	exit 3
fi
[ $# -eq 0 ] || fail "unknown argument $1"
[ "$(uname -sm)" = "Linux x86_64" ] || fail "the pinned packages are for x86_64 Linux, this is $(uname -sm)"

suits() { "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null; }
python=
for candidate in ${PYTHON:-} python3.12 python3 /usr/bin/python3.12 /usr/local/bin/python3.12 "$HOME"/.pyenv/versions/3.12.*/bin/python3; do
	if suits "$candidate"; then
		python=$candidate
		break
	fi
done
[ -n "$python" ] || fail "CPython 3.12 with venv is needed: install it, or name it with PYTHON=/path/to/python3.12"

mkdir -p "$home"
free_kib=$(df -Pk "$home" | awk 'NR == 2 { print $4 }')
[ "$free_kib" -gt $((8 << 20)) ] || fail "$home has $((free_kib >> 20)) GiB free; 8 GiB are needed"

echo "installing vLLM into $home"
rm -f "$home"/installed-*
"$venv/bin/python" -c '' 2>/dev/null || "$python" -m venv --clear "$venv"
"$venv/bin/python" -m pip install --quiet --no-deps --no-compile --no-input -r "$here/requirements.txt"
"$venv/bin/python" "$here/fit.py"
# Without this every engine compiles the same files when it first starts.
"$venv/bin/python" -m compileall -q -j 0 "$venv"/lib/python3.12/site-packages >/dev/null 2>&1 || true
HF_HUB_OFFLINE=1 CUDA_VISIBLE_DEVICES='' "$venv/bin/python" "$here/tinymodel.py" "$model"
touch "$stamp"
echo "installed in ${SECONDS} s"
