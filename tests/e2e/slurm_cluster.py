"""A SLURM cluster of several nodes on this machine: Debian's munged, slurmctld and slurmd, in folders of their own.

The daemons are the real ones; the nodes share one machine, their GPUs are empty files, and they claim more CPUs than
there
are.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

# The last one has a name that resolves, for scripts that ask SLURM for addresses.
NODES = ("n0", "n1", "localhost")
CPUS, GPUS = 96, 8
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
START_SECONDS = 60.0
_CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerNode=1000
MpiDefault=none
GresTypes=gpu
# More CPUs than this machine has.
SlurmdParameters=config_overrides
"""
_NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory=1000 Gres=gpu:{gpus}\n"
)


def missing() -> str:
    """Says why there can be no cluster here; "" if there can."""
    if os.geteuid() != 0:
        return "SLURM's daemons need root here"
    if any(shutil.which(program) is None for program in PROGRAMS):
        return "no SLURM: apt-get install slurmctld slurmd slurm-client munge"
    return ""


class Cluster:
    """A real SLURM cluster of three nodes on loopback, which runs batch scripts.

    Args:
        folder: Folder of configuration, logs and state.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.variables = {"SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Starts all daemons and waits until every node is idle."""
        self._write()
        folder = self._folder
        munge = ["munged", "--foreground", "--force", f"--key-file={folder}/key", f"--socket={folder}/munge.sock"]
        files = [f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed")]
        self._daemon("munged", [*munge, *files])
        self._wait(lambda: (folder / "munge.sock").exists(), "munged")
        self._daemon("slurmctld", ["slurmctld", "-D"])
        for node in NODES:
            self._daemon(node, ["slurmd", "-D", "-N", node])
        self._wait(lambda: self._asked("sinfo", "-h", "-t", "idle", "-o", "%D") == str(len(NODES)), "all nodes idle")

    def run(self, script: Path, *options: str, variables: dict[str, str], seconds: float) -> str:
        """Runs a batch script to its end, and returns what it printed.

        Raises:
            AssertionError: The job failed.
        """
        out = self._folder / "job.out"
        done = subprocess.run(
            ["sbatch", "--wait", f"--output={out}", *options, str(script)],
            env={**variables, **self.variables},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        said = out.read_text() if out.exists() else ""
        assert done.returncode == 0, f"{done.stderr[-2000:]} {said[-4000:]}"
        return said

    def close(self) -> None:
        """Ends jobs and daemons."""
        self._asked("scancel", "--full", "--signal=KILL", "--state=RUNNING")
        self._wait(lambda: not self._asked("squeue", "-h"), "no job")
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(30)

    def _write(self) -> None:
        folder, host = self._folder, socket.gethostname()
        for name in ("state", "spool"):
            (folder / name).mkdir()
        (folder / "key").write_bytes(secrets.token_bytes(1024))
        (folder / "key").chmod(0o600)
        controller, *ports = _free_ports(1 + len(NODES))
        config = _CONFIG.format(host=host, port=controller, folder=folder)
        for name, port in zip(NODES, ports, strict=True):
            config += _NODE.format(name=name, host=host, port=port, cpus=CPUS, gpus=GPUS)
        (folder / "slurm.conf").write_text(f"{config}PartitionName=all Nodes=ALL Default=YES State=UP\n")
        # Files must be there: any will do that nothing opens.
        devices = [folder / f"gpu{number}" for number in range(GPUS)]
        for device in devices:
            device.touch()
        (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-{GPUS - 1}]\n")

    def _daemon(self, name: str, command: Sequence[str]) -> None:
        with (self._folder / f"{name}.out").open("wb") as out:
            environment = {**os.environ, **self.variables}
            self._daemons.append(subprocess.Popen(command, stdout=out, stderr=out, env=environment))

    def _asked(self, *command: str) -> str:
        environment = {**os.environ, **self.variables}
        found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
        return found.stdout.strip()

    def _wait(self, reached, what: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not reached():
            logs = [path.read_text()[-1000:] for path in self._folder.glob("*.log")]
            assert time.monotonic() < deadline, f"{what}: {logs}"
            time.sleep(0.1)


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    """Yields a cluster that lasts as long as the block."""
    cluster = Cluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
