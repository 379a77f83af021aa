"""What launchers and schedulers tell a process by variables: the job's name, and a rank.

torchrun's own variables are ``identity.py``'s. Here are those of Slurm, PBS, LSF, Open MPI, MPICH
and Intel MPI, PMIx, Ray, and Kubeflow's PyTorchJob and TrainJob, by their documentation.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

RECORDED = (
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NTASKS",
    "SLURM_STEP_ID",
    "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "PMI_RANK",
    "PMI_SIZE",
    "PMIX_RANK",
    "PMIX_NAMESPACE",
    "RAY_JOB_ID",
    "PET_NODE_RANK",
    "PET_NNODES",
)
"""Variables of theirs that stand in a journal."""

# Rank, number of ranks, rank on this host, and how many are on it.
_RANKS = (
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("PMIX_RANK", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
)
_MPI_JOBS = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID")
_KUBEFLOW = (
    r"(?P<job>[a-z0-9]([-a-z0-9.]{0,250}[a-z0-9])?)"
    r"-(?:(?:master|worker)-\d{1,9}|node-\d{1,9}-\d{1,9})(?:-[a-z0-9]{5})?(?:\..*)?"
)
"""A pod of a PyTorchJob (JOB-worker-3) or a TrainJob (JOB-node-0-3), alone or as a host's name."""


def rank(environ: "Mapping[str, str]") -> "dict[str, int] | None":
    """``rank``, ``world_size`` and ``local_rank`` of a process that MPI or srun started.

    None where there is but one on each host: that may be a launcher, which starts the ranks.
    """
    for names in _RANKS:
        number, size, local, beside = (_leading(environ.get(name)) for name in names)
        if number is None or size is None or number >= size or beside in (None, 1):
            continue
        found = {"rank": number, "world_size": size}
        return found if local is None else {**found, "local_rank": local}
    return None


def has_several_hosts(environ: "Mapping[str, str]") -> bool:
    """Whether MPI or srun started this process as one of several hosts'."""
    for names in _RANKS:
        number, size, _, beside = (_leading(environ.get(name)) for name in names)
        if number is not None and size is not None and beside is not None:
            return beside < size
    is_step = "SLURM_STEP_NUM_TASKS" in environ  # a batch script is started on one of its hosts
    nodes = _leading(environ.get("SLURM_NNODES") or environ.get("SLURM_JOB_NUM_NODES"))
    return is_step and nodes is not None and nodes > 1


def job(environ: "Mapping[str, str]") -> tuple[str, str] | None:
    """The job's name, and the variable that holds it; None where none does."""
    if (slurm := _slurm(environ)) is not None:
        return slurm
    for name in ("PBS_JOBID", "LSB_JOBID", "TORCHELASTIC_RUN_ID", "PET_RDZV_ID", *_MPI_JOBS):
        value = environ.get(name)
        if value and value != "none":
            return value, name
    if ray := environ.get("RAY_JOB_ID"):
        return f"ray-{ray}", "RAY_JOB_ID"
    if "KUBERNETES_SERVICE_HOST" in environ:
        import re  # start-up does without it elsewhere

        for name in ("PET_MASTER_ADDR", "MASTER_ADDR", "HOSTNAME"):
            pod = re.fullmatch(_KUBEFLOW, environ.get(name, ""))
            if pod is not None:
                return pod["job"], name
    return None


def _slurm(environ: "Mapping[str, str]") -> tuple[str, str] | None:
    """``JOB``, ``ARRAY_TASK`` of an array, and ``.STEP`` where a step has all hosts of the job.

    Steps on parts of them may be one job together, such as a head and its workers.
    """
    found, source = environ.get("SLURM_JOB_ID"), "SLURM_JOB_ID"
    if not found:
        return None
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    if array and task:
        found, source = f"{array}_{task}", "SLURM_ARRAY_JOB_ID"
    step, hosts = environ.get("SLURM_STEP_ID", ""), environ.get("SLURM_STEP_NODELIST")
    is_number = step.isascii() and step.isdecimal() and len(step) < 10  # beyond: batch, extern
    if is_number and hosts and hosts == environ.get("SLURM_JOB_NODELIST"):
        found = f"{found}.{step}"
    return found, source


def _leading(text: str | None) -> int | None:
    """The number that a text is or, as in ``8(x2)``, begins with."""
    number = (text or "").partition("(")[0].partition(",")[0]
    is_one = number.isascii() and number.isdecimal() and len(number) < 10
    return int(number) if is_one else None
