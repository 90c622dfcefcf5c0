"""Finds which rank of how many a process is, by the variables that launchers set in the environment.

`config.py` uses it for every trainer, and `tools/doctor/environment.py` shows its warnings. `docs/scale-out.md` has
the table of launchers, with the documentation of each. The first launcher in `LAUNCHERS` whose variables are complete
counts. One that may run inside another comes before it, as torchrun, which srun may start.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from streamer.errors import ConfigError


@dataclass(frozen=True)
class Launcher:
    """A launcher, and the names of the variables that it sets in every rank.

    Attributes:
        name: Name for messages.
        rank: Variable with the rank.
        size: Variable with the number of ranks.
        local_sizes: Variables with the number of ranks on this node; the first one that is set counts.
        nodes: Variable with the number of nodes; "" if the launcher has none.
        jobs: Variables with a text that all ranks of a job have in common; the first one that is set counts.
    """

    name: str
    rank: str
    size: str
    local_sizes: tuple[str, ...] = ()
    nodes: str = ""
    jobs: tuple[str, ...] = ()


# DeepSpeed counts the ranks of a node in LOCAL_SIZE.
TORCHRUN = Launcher("torchrun", "RANK", "WORLD_SIZE", ("LOCAL_WORLD_SIZE", "LOCAL_SIZE"), "GROUP_WORLD_SIZE")
SLURM = Launcher("SLURM", "SLURM_PROCID", "SLURM_NTASKS", nodes="SLURM_NNODES", jobs=("SLURM_JOB_ID",))
# The variables of jsrun and Flux come before those of PMI, which they set, too.
LAUNCHERS = (
    TORCHRUN,
    Launcher("Horovod", "HOROVOD_RANK", "HOROVOD_SIZE", ("HOROVOD_LOCAL_SIZE",), "HOROVOD_CROSS_SIZE"),
    Launcher(
        "submitit",
        "SUBMITIT_LOCAL_GLOBALID",
        "SUBMITIT_LOCAL_NTASKS",
        ("SUBMITIT_LOCAL_NTASKS",),
        jobs=("SUBMITIT_LOCAL_JOB_ID",),
    ),
    Launcher("jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", jobs=("PMIX_NAMESPACE", "LSB_JOBID")),
    Launcher(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
        jobs=("PMIX_NAMESPACE",),
    ),
    Launcher(
        "MVAPICH2",
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_SIZE",
        ("MV2_COMM_WORLD_LOCAL_SIZE",),
        nodes="MV2_NUM_NODES_IN_JOB",
    ),
    Launcher("Flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", nodes="FLUX_JOB_NNODES", jobs=("FLUX_JOB_ID",)),
    Launcher("MPI", "PMI_RANK", "PMI_SIZE", ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"), jobs=("PALS_APID", "PMI_JOBID")),
    SLURM,
)
# Variables that number a process, a node or a container, by launchers that do not tell the number of ranks. Nodes and
# containers are numbered by pbsdsh, Kubeflow, Kubernetes and AWS Batch.
_WITHOUT_SIZE = (
    *("PMIX_RANK", "PMI_ID", "PALS_RANKID", "ALPS_APP_PE", "MPI_RANKID", "LSF_PM_TASKID"),
    *("LOCAL_RANK", "MPI_LOCALRANKID", "PBS_NODENUM", "PBS_VNODENUM"),
    *("NODE_RANK", "PET_NODE_RANK", "JOB_COMPLETION_INDEX", "AWS_BATCH_JOB_NODE_INDEX"),
)
# Variables with the number of processes on a node. Kubeflow and PAI of Alibaba set them, and the node's number as RANK.
_PROCESSES_OF_NODE = ("NPROC_PER_NODE", "PET_NPROC_PER_NODE")
# Numbers of SLURM's steps that srun did not start: interactive step, batch script, extern and pending step
# (slurm/slurm.h).
_NO_TASKS = frozenset(str(0xFFFFFFFA + number) for number in range(4))
# Names that SLURM gives to an interactive job: a shell, perhaps with the dash of a login shell.
_SHELL = re.compile(r"-?(ba|z|da|k|c|tc|fi)?sh|interactive")


@dataclass(frozen=True)
class Place:
    """The place of a process among the ranks of its launcher.

    Attributes:
        rank: Number of this rank.
        world_size: Number of ranks.
        local_size: Number of ranks on this node; 0 if it is not known.
        nodes: Number of nodes; 0 if it is not known.
        job: Text that all ranks of the job have in common; "" if there is none.
        note: Warning about variables that are incomplete or contradict each other; "" if there is none.
    """

    rank: int = 0
    world_size: int = 1
    local_size: int = 0
    nodes: int = 0
    job: str = ""
    note: str = ""


def find_place(env: Mapping[str, str]) -> Place:
    """Returns the place that the variables of the environment tell; rank 0 of 1 where they tell none.

    Raises:
        ConfigError: a variable is not a number, or a number of ranks is 0.
    """
    found = []
    incomplete = []
    outside = ""
    for launcher in LAUNCHERS:
        size_name = launcher.size
        if launcher is SLURM:
            outside = _outside_of_step(env)
            if outside:
                continue
            size_name = "SLURM_STEP_NUM_TASKS" if env.get("SLURM_STEP_NUM_TASKS") else size_name
        rank = read_number(env, (launcher.rank,))
        size = read_number(env, (size_name,))
        if size == 0:
            raise ConfigError(f"{size_name}=0 in the environment: a job has at least one rank", field=size_name)
        if rank is not None and size is not None:
            found.append((launcher, size_name, rank, size))
        elif launcher is SLURM and not rank:
            continue  # SLURM_NTASKS alone is that of an allocation, and SLURM_PROCID=0 of its script
        else:
            incomplete += [name for name in (launcher.rank, size_name) if env.get(name)]
    if not found:
        return Place(note=_describe_lack(env, incomplete, outside))
    launcher, size_name, rank, size = found[0]
    return Place(
        rank=rank,
        world_size=size,
        local_size=read_number(env, launcher.local_sizes) or 0,
        nodes=read_number(env, (launcher.nodes,)) or 0,
        job=next((env[name] for name in launcher.jobs if env.get(name)), ""),
        note=_describe_difference(env, found) or _describe_doubt(env, launcher, rank, size),
    )


def read_number(env: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    """Returns the number in the first of these variables that is set; None if none is.

    Raises:
        ConfigError: the variable is not a whole number of at least 0.
    """
    for name in names:
        if text := env.get(name):
            if not text.isdecimal():
                raise ConfigError(f"{name}={text!r} in the environment is not a number", field=name)
            return int(text)
    return None


def _outside_of_step(env: Mapping[str, str]) -> str:
    """Returns why a process of a SLURM job is not a task of srun; "" if it is one, or if there is no SLURM job.

    The shell of `salloc`, the script of `sbatch`, and programs that these start without srun see the allocation's
    number of tasks, although each is a single process.
    """
    step = env.get("SLURM_STEP_ID") or env.get("SLURM_STEPID")
    if step in _NO_TASKS:
        return f"SLURM_STEP_ID={step} is the script or the shell of a job"
    if step == "0" and env.get("SLURM_PTY_PORT") and _SHELL.fullmatch(env.get("SLURM_JOB_NAME", "")):
        return f"SLURM_PTY_PORT is set, and SLURM_JOB_NAME={env['SLURM_JOB_NAME']} is a shell"
    if step or not env.get("SLURM_NTASKS"):
        return ""
    if not env.get("SLURM_PROCID"):
        return "SLURM_PROCID is not set"
    # Rank 0 without a step, together with a variable of sbatch, is that of sbatch's script.
    if env["SLURM_PROCID"] == "0" and any(env.get(f"SLURM_{name}") for name in ("TASK_PID", "SUBMIT_DIR", "JOB_NAME")):
        return "SLURM_STEP_ID is not set"
    return ""


def _describe_lack(env: Mapping[str, str], names: list[str], outside: str) -> str:
    """Returns a warning for a process without a rank, which reads all samples, if variables tell of several ranks.

    Args:
        env: Variables of the environment.
        names: Variables of launchers that set a rank or a number of ranks, but not both.
        outside: Result of `_outside_of_step`.

    Returns:
        The warning; "" if nothing tells of several ranks.
    """
    advice = (
        "; this process reads all samples. If it is one of several, call torch.distributed.init_process_group before "
        "the first batch, or give the dataset rank= and world_size="
    )
    if outside and (read_number(env, ("SLURM_NTASKS",)) or 1) > 1:
        return f"SLURM_NTASKS={env['SLURM_NTASKS']}, but this is not a task of srun ({outside}){advice}"
    hosts = env.get("SM_HOSTS", "").count('"') // 2
    if hosts > 1 and not names:
        return f"SM_HOSTS names {hosts} instances of SageMaker, but no variable has a rank{advice}"
    seen = names or [name for name in _WITHOUT_SIZE if env.get(name)]
    if not seen or all(env[name] == ("1" if name.endswith("SIZE") else "0") for name in seen):
        return ""
    listed = ", ".join(f"{name}={env[name]}" for name in seen)
    return f"{listed} in the environment, but not both a rank and the number of ranks{advice}"


def _describe_difference(env: Mapping[str, str], found: list[tuple[Launcher, str, int, int]]) -> str:
    """Returns a warning if launchers tell different ranks; "" if they agree.

    Only rank 0 of the launcher that counts gets it, so that a job is warned once.
    """
    first, size_name, rank, size = found[0]
    # Another launcher starts torchrun once on a node, so that its variables are those of the node.
    if rank or (first is TORCHRUN and env.get("TORCHELASTIC_RUN_ID")):
        return ""
    others = [each for each in found[1:] if each[2:] != (rank, size)]
    if not others:
        return ""
    listed = "; ".join(f"{one.name}: {one.rank}={r}, {name}={s}" for one, name, r, s in others)
    return (
        f"the launchers do not tell the same rank. That of {first.name} counts: {first.rank}={rank}, "
        f"{size_name}={size} ({listed}). If it is wrong, call torch.distributed.init_process_group before the first "
        "batch, or give the dataset rank= and world_size="
    )


def _describe_doubt(env: Mapping[str, str], launcher: Launcher, rank: int, size: int) -> str:
    """Returns a warning if the rank may number a node, or a script of SLURM that srun did not start; else ""."""
    if launcher is TORCHRUN and not env.get("LOCAL_RANK"):
        # "auto" and "gpu" are a choice of torchrun, and say nothing of this process.
        name = next((one for one in _PROCESSES_OF_NODE if env.get(one, "").isdecimal() and int(env[one]) > 1), "")
        if name:
            return (
                f"RANK={rank} and WORLD_SIZE={size} in the environment seem to number the nodes, since {name}="
                f"{env[name]} and LOCAL_RANK is not set: this process reads the share of rank {rank} of {size}. If it "
                "is not alone on its node, start it by torchrun, call torch.distributed.init_process_group before the "
                "first batch, or give the dataset rank= and world_size="
            )
    if launcher is not SLURM or rank or size == 1 or env.get("SLURM_STEP_ID") or env.get("SLURM_STEPID"):
        return ""
    return (
        f"SLURM_PROCID=0 and SLURM_NTASKS={size} in the environment, but no SLURM_STEP_ID, which srun sets: this "
        f"process reads the share of rank 0 of {size}. If it is alone, remove SLURM_PROCID, or give the dataset rank=0 "
        "and world_size=1"
    )
