"""Stand-ins for Slurm's programs: a job runs at once, as a process of this machine.

They take what submitit gives them. `sbatch` keeps the script of each job; `sacct` tells whether a
job's process still runs, and `scancel` ends it.
"""

from __future__ import annotations

import stat
import sys
from pathlib import Path

SBATCH = """
import os, pathlib, shutil, subprocess, sys
root = pathlib.Path(os.environ["FAKE_SLURM"])
if (root / "down").exists():
    sys.exit("sbatch: error: Batch job submission failed: Unable to contact slurm controller")
number = 1
while True:
    try:
        (root / f"job-{number}").mkdir()
        break
    except FileExistsError:
        number += 1
script = root / f"job-{number}" / "script"
shutil.copy(sys.argv[1], script)
job = {"SLURM_JOB_ID": str(number), "SLURM_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1",
       "SLURM_NODEID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_JOB_NODELIST": "here"}
with open(root / f"job-{number}" / "log", "w") as log:
    child = subprocess.Popen(["bash", script], env={**os.environ, **job}, stdout=log, stderr=log,
                             stdin=subprocess.DEVNULL, start_new_session=True)
(root / f"job-{number}" / "pid").write_text(str(child.pid))
print("Submitted batch job", number)
"""

SRUN = """
import os, sys
words = sys.argv[1:]
while words[0].startswith("--"):
    del words[: 1 if words[0] == "--unbuffered" else 2]
os.execvp(words[0], words)
"""

SACCT = """
import os, pathlib, sys
root = pathlib.Path(os.environ["FAKE_SLURM"])
print("JobID|State|NodeList")
for folder in root.glob("job-*"):
    pid = folder / "pid"
    stat = pathlib.Path("/proc") / pid.read_text() / "stat" if pid.exists() else None
    runs = stat and stat.exists() and ") Z" not in stat.read_text()
    print(folder.name.removeprefix("job-") + "|" + ("RUNNING" if runs else "FAILED") + "|here")
"""

SCANCEL = """
import os, pathlib, signal, sys
pid = int((pathlib.Path(os.environ["FAKE_SLURM"]) / f"job-{sys.argv[1]}" / "pid").read_text())
try:
    os.killpg(pid, signal.SIGKILL)
except ProcessLookupError:
    pass
"""


def install(folder: Path) -> dict[str, str]:
    """Write the programs into a folder; return the environment in which they are found."""
    programs, state = folder / "bin", folder / "slurm"
    for made in (programs, state):
        made.mkdir(parents=True)
    for name, source in (
        ("sbatch", SBATCH),
        ("srun", SRUN),
        ("sacct", SACCT),
        ("scancel", SCANCEL),
    ):
        file = programs / name
        file.write_text(f"#!{sys.executable} -S\n{source}")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return {"FAKE_SLURM": str(state), "PATH_PREFIX": str(programs)}


def scripts(environment: dict[str, str]) -> list[str]:
    """Return what Slurm got: the script of each job."""
    return [
        file.read_text() for file in sorted(Path(environment["FAKE_SLURM"]).glob("job-*/script"))
    ]
