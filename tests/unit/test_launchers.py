"""The variables that launchers set: which rank they give, and the notes about those that are not clear."""

from __future__ import annotations

import re

import pytest

from streamer.errors import ConfigError
from streamer.launchers import LAUNCHERS, SLURM, find_place

STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "2"}
BATCH = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_TASK_PID": "9"}


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda launcher: launcher.name)
def test_each_launcher_numbers_its_ranks(launcher):
    """Each launcher's variables give every rank its number, without a note."""
    step = {"SLURM_STEP_ID": "0"} if launcher is SLURM else {}
    for rank in range(3):
        place = find_place({launcher.rank: str(rank), launcher.size: "3", **step})
        assert (place.rank, place.world_size, place.note) == (rank, 3, "")


@pytest.mark.parametrize(
    ("variables", "rank", "world_size", "note"),
    [
        ({}, 0, 1, ""),
        ({**STEP, "SLURM_PROCID": "1"}, 1, 2, ""),
        ({"SLURM_STEP_ID": "3", "SLURM_PROCID": "1", "SLURM_NTASKS": "4"}, 1, 4, ""),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "4"}, 1, 4, ""),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, 0, 4, "no SLURM_STEP_ID"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, 0, 1, ""),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}, 0, 1, "SLURM_NTASKS=4.*SLURM_PROCID is not set"),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1"}, 0, 1, ""),
        (BATCH, 0, 1, "SLURM_NTASKS=4.*SLURM_STEP_ID is not set"),
        ({**STEP, "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967290"}, 0, 1, "SLURM_STEP_ID=4294967290"),
        ({**STEP, "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967291"}, 0, 1, "SLURM_STEP_ID=4294967291"),
        ({**STEP, "SLURM_PROCID": "0", "SLURM_PTY_PORT": "1", "SLURM_JOB_NAME": "bash"}, 0, 1, "SLURM_PTY_PORT"),
        ({**STEP, "SLURM_PROCID": "0", "SLURM_PTY_PORT": "1", "SLURM_JOB_NAME": "train"}, 0, 2, ""),
    ],
)
def test_only_a_step_of_srun_has_ranks(variables, rank, world_size, note):
    """Only a step of srun has ranks: a shell of salloc and a script of sbatch are one process of the allocation."""
    place = find_place(variables)
    assert (place.rank, place.world_size) == (rank, world_size)
    assert re.search(note, place.note) if note else place.note == ""


@pytest.mark.parametrize(
    ("variables", "rank", "world_size", "line"),
    [
        # torchrun once per node: the usual way, without a line.
        ({"RANK": "0", "WORLD_SIZE": "8", "TORCHELASTIC_RUN_ID": "j", **STEP, "SLURM_PROCID": "1"}, 0, 8, False),
        ({"RANK": "0", "WORLD_SIZE": "8", "PMI_RANK": "1", "PMI_SIZE": "2"}, 0, 8, True),
        ({"RANK": "5", "WORLD_SIZE": "8", "PMI_RANK": "1", "PMI_SIZE": "2"}, 5, 8, False),
        ({"RANK": "1", "WORLD_SIZE": "2", "PMI_RANK": "1", "PMI_SIZE": "2"}, 1, 2, False),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4", **STEP, "SLURM_PROCID": "0"}, 0, 4, True),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", **BATCH}, 3, 4, False),
    ],
)
def test_the_innermost_launcher_counts(variables, rank, world_size, line):
    """The innermost launcher's rank counts, and its rank 0 has a note where another one differs."""
    place = find_place(variables)
    assert (place.rank, place.world_size, bool(place.note)) == (rank, world_size, line)
    if line:
        assert all(f"{name}=" in place.note for name in variables if name.endswith(("_RANK", "PROCID")))


@pytest.mark.parametrize(
    "variables",
    [
        {"WORLD_SIZE": "2"},
        {"RANK": "1"},
        {"PMIX_RANK": "1"},
        {"OMPI_COMM_WORLD_SIZE": "2"},
        {"FLUX_TASK_RANK": "3"},
        {"PMI_ID": "1"},
        {"MPI_RANKID": "2"},
        {"PBS_NODENUM": "1"},
        {"PBS_VNODENUM": "1"},
        {"NODE_RANK": "1"},
        {"PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "8"},
        {"JOB_COMPLETION_INDEX": "2"},
        {"AWS_BATCH_JOB_NODE_INDEX": "3"},
        {"SUBMITIT_LOCAL_NTASKS": "2"},
    ],
)
def test_half_of_the_variables_is_one_line(variables):
    """A process with half of a launcher's variables reads everything, with a note that names them."""
    place = find_place(variables)
    assert (place.rank, place.world_size) == (0, 1)
    seen = {name: value for name, value in variables.items() if not name.endswith("PER_NODE")}
    assert all(f"{name}={value}" in place.note for name, value in seen.items())


@pytest.mark.parametrize("variables", [{"WORLD_SIZE": "1"}, {"RANK": "0"}, {"LOCAL_RANK": "0"}, {"PBS_NODENUM": "0"}])
def test_what_a_lone_process_may_have_is_no_line(variables):
    """Rank 0 or a world size of 1 alone gives no note."""
    assert find_place(variables).note == ""


def test_what_is_no_number_is_refused():
    """A rank or size that is no possible number raises ConfigError with the variable."""
    with pytest.raises(ConfigError, match="PMI_RANK='x'"):
        find_place({"PMI_RANK": "x", "PMI_SIZE": "2"})
    with pytest.raises(ConfigError, match="WORLD_SIZE=0"):
        find_place({"RANK": "0", "WORLD_SIZE": "0"})


def test_instances_of_sagemaker_without_a_launcher():
    """SageMaker instances without a launcher have a note: no variable numbers them without `distribution`."""
    hosts = {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-1"}
    assert "SM_HOSTS names 2 instances" in find_place(hosts).note
    assert find_place({**hosts, "RANK": "1", "WORLD_SIZE": "2"}).note == ""
    assert find_place({**hosts, "SM_HOSTS": '["algo-1"]'}).note == ""


def test_ranks_of_a_node_are_counted_by_each_mpi():
    """The ranks of a node are counted by MPI_LOCALNRANKS, by PMI_LOCAL_SIZE of PALS, or by DeepSpeed's LOCAL_SIZE."""
    assert find_place({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_SIZE": "4"}).local_size == 4
    pmi = {"PMI_RANK": "5", "PMI_SIZE": "8"}
    assert find_place({**pmi, "MPI_LOCALNRANKS": "4"}).local_size == 4
    assert find_place({**pmi, "PMI_LOCAL_SIZE": "2", "PALS_APID": "7.0"}).local_size == 2
    assert find_place(pmi).local_size == 0


@pytest.mark.parametrize("name", ["NPROC_PER_NODE", "PET_NPROC_PER_NODE"])
def test_a_rank_that_numbers_nodes_is_doubted(name):
    """RANK without LOCAL_RANK, beside several processes per node, has a note: it may number nodes.
    Kubeflow and PAI set RANK and WORLD_SIZE in each container, where torchrun sets its own, and mpirun does not."""
    node = {"RANK": "1", "WORLD_SIZE": "2", name: "8"}
    place = find_place(node)
    assert (place.rank, place.world_size) == (1, 2)
    assert f"{name}=8 and LOCAL_RANK is not set" in place.note
    assert find_place({**node, name: "1"}).note == find_place({**node, name: "auto"}).note == ""
    assert find_place({**node, "RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1"}).note == ""


PRRTE = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "PMIX_RANK": "3", "PMIX_NAMESPACE": "n@1"}
TORCH = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
MVAPICH = {"PMI_ID": "3", "MV2_COMM_WORLD_RANK": "3", "MV2_COMM_WORLD_SIZE": "4", "MV2_NUM_NODES_IN_JOB": "2"}
JOBS = {
    "prrte": PRRTE,
    "azure": {**TORCH, "NODE_RANK": "1", "AZUREML_RUN_ID": "r"},
    "deepspeed": {**TORCH, "LOCAL_SIZE": "2", "CROSS_RANK": "1", "CROSS_SIZE": "2"},
    "mpich of deepspeed": {"WORLD_SIZE": "4", "LOCAL_SIZE": "2", "PMI_RANK": "3", "PMI_SIZE": "4"},
    "mvapich": MVAPICH,
    "hydra of mvapich": {"PMI_RANK": "3", "PMI_SIZE": "4", "PMI_FD": "7", "MPI_LOCALNRANKS": "2"},
    "submitit": {"SUBMITIT_LOCAL_GLOBALID": "3", "SUBMITIT_LOCAL_NTASKS": "4", "SUBMITIT_LOCAL_NODEID": "0"},
    "mpirun in sbatch": {**PRRTE, **BATCH},
}


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_the_variables_of_real_jobs(job):
    """The variables of one rank of real jobs, taken from their sources, give the innermost launcher's rank."""
    place = find_place(job)
    assert (place.rank, place.world_size, place.note) == (3, 4, "")


def test_mvapich_counts_nodes():
    """MVAPICH tells the number of nodes of a job."""
    assert find_place(MVAPICH).nodes == 2


def test_a_heterogeneous_job_counts_all_its_components():
    """A heterogeneous Slurm job counts the tasks of all its components, as srun numbers them."""
    place = find_place({"SLURM_STEP_ID": "0", "SLURM_PROCID": "5", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "6"})
    assert (place.rank, place.world_size) == (5, 6)
