"""Fits the installed packages to a machine without a GPU. Safe to run again.

Each change is to one known line of a pinned version. A line that is not there is
an error: the pins and this file go together.
"""

import pathlib
import sys
import sysconfig

SITE = pathlib.Path(sysconfig.get_paths()["purelib"])


def replace(file, old, new):
    path = SITE / file
    text = path.read_text()
    if new in text:
        return
    if text.count(old) != 1:
        sys.exit(f"fit.py: {path} has {text.count(old)} times {old!r}, not once")
    path.write_text(text.replace(old, new))


# "vllm serve" asks for the version of the package "vllm". The CPU wheel has
# another name, so a package of that name and no contents is put beside it.
version = "0.32.0+cpu"
meta = SITE / f"vllm-{version}.dist-info" / "METADATA"
meta.parent.mkdir(exist_ok=True)
meta.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")

# NIXL's progress thread polls without a pause, which keeps one core busy for each
# engine for as long as it lives. A millisecond between two looks is soon enough.
replace("nixl_cu13/_api.py", "agent_config.pthrDelay = 0", "agent_config.pthrDelay = 1000  # us")

# The NIXL worker binds its process to the machine's last core. Where prefill and
# decode share a machine, both would share that core.
replace(
    "vllm/distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py",
    "os.sched_setaffinity(0, rsv_cores_for_kv)",
    "pass  # not bound to a core",
)
