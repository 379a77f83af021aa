"""Who this process is: a random id drawn at start and after fork; everything else is a label.

Rank, run id, host and pid are all ambiguous (PyTorch's rendezvous fails before a rank is known,
pods share host names and pids, run ids are often ``none``), so nothing but the id identifies.

Start-up draws the id, so nothing is imported here that the bare interpreter has not loaded.
"""

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

# Handed to children: id, role and job of the traced process that started them; and where that is no
# launcher itself, the id of the one above it (``ID,ROLE@LAUNCHER,JOB``). It is ``ROLE/`` where its
# journal lies in a folder of its host: theirs belong there too.
PARENT_VARIABLE = "DISTTRACE_PARENT"
JOB_VARIABLE = "DISTTRACE_JOB"

RANK_VARIABLES = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID"),
    *("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_BLOCKING_WAIT"),
    *("TORCH_NCCL_ENABLE_MONITORING", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "TRACEPARENT"),
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_STEP_ID"),
    *("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    *("PMI_RANK", "PMI_SIZE", "PMIX_RANK", "PMIX_NAMESPACE"),
    *("RAY_JOB_ID", "PET_NODE_RANK", "PET_NNODES"),
)
"""Variables of launchers and schedulers that stand in a journal."""

AGENT, WORKER, CHILD, MAIN = "agent", "worker", "child", "main"
DRAWN = "drawn"
"""Where nothing names the job: no other process has the same name for it."""

# Programs that are torchrun's agent from their first line on.
_AGENT_MODULES = frozenset(
    {"torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic.agent"}
)
_AGENT_SCRIPTS = frozenset({"torchrun", "torchrun.exe"})

PREFIXES = () if getattr(sys, "frozen", False) else (sys.exec_prefix, sys.base_exec_prefix)
"""Where this interpreter is installed, before the program changes it; none if it is frozen."""

_WITH_VALUE = frozenset({"-X", "-W", "--check-hash-based-pycs"})  # the interpreter's options
_FLAGS = frozenset(
    {"standalone", "m", "module", "no_python", "run_path", "virtual_local_rank", "h"}
)
"""Options of torchrun without a value."""

_TIGHT_NS = 200


class ClockAnchor:
    """The tightest of five readings of the wall clock between two monotonic ones, or the first one
    that is tight enough; ``error_ns`` is half that time."""

    def __init__(self) -> None:
        self.mono_ns = self.unix_ns = 0
        self.error_ns = 1 << 62
        for _ in range(5):
            before = time.perf_counter_ns()
            unix = time.time_ns()
            after = time.perf_counter_ns()
            error = (after - before) // 2
            if error < self.error_ns:
                self.mono_ns, self.unix_ns, self.error_ns = (before + after) // 2, unix, error
            if error < _TIGHT_NS:
                break


class Identity:
    """The labels of one process, as of its start or fork; ``role`` may change."""

    parent: str | None
    launcher: str | None
    role: str
    job: str

    def __init__(
        self,
        environ: "Mapping[str, str]",
        *,
        job: str | None = None,
        forked_from: "Identity | None" = None,
    ) -> None:
        """Draw an id, collect the labels; ``forked_from``: of the process that was forked."""
        self.process = os.urandom(16).hex()
        if forked_from is None:
            self.parent, parent_role, self.launcher, parent_job, by_host = _parent(environ)
        else:
            self.parent, parent_role = forked_from.process, forked_from.role
            parent_job, by_host = forked_from.job, forked_from.by_host
            self.launcher = forked_from.launcher
        self.role, self.rank = _role(environ, parent_role)
        # An agent is a launch of its own, whatever started it.
        inherited = None if self.role == AGENT else parent_job
        self.job, self.job_source = _job(environ, job, inherited, self.process)
        self.run = environ.get("TORCHELASTIC_RUN_ID")
        self.attempt = integer(environ.get("TORCHELASTIC_RESTART_COUNT"))
        self.host = os.uname().nodename
        self.pid = os.getpid()
        self.ppid = os.getppid()
        self.env = {name: environ[name] for name in RANK_VARIABLES if name in environ}
        self.spread = _is_spread(environ, self.role, by_host)
        self.clock = ClockAnchor()

    def base_name(self) -> str:
        """Name of the journal's files, without suffix."""
        return self.name_of(self.pid) + file_part(self.process[:12])

    @property
    def by_host(self) -> bool:
        """Whether its journal lies in a folder of its job and host: a named job on several."""
        named = self.job_source != DRAWN and {self.job, self.host}.isdisjoint(("", ".", ".."))
        return self.spread and named

    def folder(self, root: str) -> str:
        """Where its journal lies below ``root``: many ranks' files in one folder are slow."""
        if not self.by_host:
            return root
        return os.path.join(root, file_part(self.job), file_part(self.host))

    def name_of(self, pid: int) -> str:
        """How the names of journals of this job's process ``pid`` on this host begin."""
        return "".join(f"{file_part(part)}-" for part in (self.job, self.host, str(pid)))

    def launched(self, environ: "Mapping[str, str]") -> "dict[str, Any]":
        """Run and attempt, where a launcher wrote them into ``environ`` after its start."""
        found: dict[str, Any] = {}
        if self.attempt is None:
            found["attempt"] = integer(environ.get("TORCHELASTIC_RESTART_COUNT"))
        if self.run is None:
            found["run"] = environ.get("TORCHELASTIC_RUN_ID")
        return {key: value for key, value in found.items() if value is not None}

    def record(self, argv: list[str]) -> "dict[str, Any]":
        """The process's part of the journal's first line; ``argv`` is masked already."""
        labels = "process parent job job_source run attempt host pid ppid role env"
        return {
            **{name: getattr(self, name) for name in labels.split()},
            "start_ns": self.clock.unix_ns,
            "argv": argv,
            "cwd": working_directory(),
            "python": sys.version.split()[0],
            "t0": self.clock.mono_ns,
            "unix_ns": self.clock.unix_ns,
            "error_ns": self.clock.error_ns,
        }

    def handed_down(self) -> str:
        """Value of ``PARENT_VARIABLE`` for the children of this process."""
        above = f"@{self.launcher}" if self.launcher and self.role != AGENT else ""
        role = f"{self.role}{'/' if self.by_host else ''}"
        return f"{self.process},{role}{above},{self.job}"


def file_part(label: str) -> str:
    """``label`` as a part of a file's name: no separator, nothing that a shell takes apart."""
    kept = (c if (c.isascii() and c.isalnum()) or c in "._" else "_" for c in label[:60])
    return "".join(kept)


def command_line() -> list[str]:
    """The interpreter's own arguments, which exist before ``sys.argv`` does."""
    return list(getattr(sys, "orig_argv", None) or getattr(sys, "argv", None) or [])


def _parent(
    environ: "Mapping[str, str]",
) -> tuple[str | None, str | None, str | None, str | None, bool | None]:
    """Id and role of the parent, id of the launcher, the job, and whether it lies by host."""
    parent, _, rest = environ.get(PARENT_VARIABLE, "").partition(",")
    role, _, job = rest.partition(",")
    role, _, launcher = role.partition("@")
    by_host = role.endswith("/") if parent else None
    role = role.removesuffix("/")
    above = parent if role == AGENT else launcher
    return (parent or None, role or None, above or None, job or None, by_host)


def _job(
    environ: "Mapping[str, str]", job: str | None, inherited: str | None, process: str
) -> tuple[str, str]:
    if job:
        return job, JOB_VARIABLE
    if inherited:
        return inherited, "parent"
    if (named := named_job(environ)) is not None:
        return named
    if (run := (_torchrun() or {}).get("rdzv_id")) not in (None, "", "none"):
        # torchrun gives its run id to the workers only; its hosts agree on it all the same.
        return str(run), "--rdzv-id"
    return f"job_{process[:12]}", DRAWN


def _role(environ: "Mapping[str, str]", parent_role: str | None) -> tuple[str, int | None]:
    """Role at start; RANK counts only where a launcher set it for this very process."""
    if _torchrun() is not None:
        return AGENT, None
    rank = integer(environ.get("RANK"))
    if rank is not None and "WORLD_SIZE" in environ and parent_role in (None, AGENT):
        return WORKER, rank
    if parent_role is not None:
        return CHILD, None
    # Under MPI any program is a rank, a short one before the training too: it is a worker when it
    # uses torch.distributed.
    return MAIN, (launched_rank(environ) or {}).get("rank")


def _is_spread(environ: "Mapping[str, str]", role: str, parents: bool | None) -> bool:
    """Whether the job is known to have several hosts. ``parents``: whether the journal of the
    traced parent lies by host, as both lie in one folder; but an agent is a launch of its own.
    """
    if role == AGENT:
        nodes = (_torchrun() or {}).get("nnodes") or environ.get("PET_NNODES") or ""
        return (integer(nodes.rpartition(":")[2]) or 1) > 1
    if parents is not None:
        return parents
    ranks, here = (integer(environ.get(name)) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if ranks is not None and here is not None:
        return 0 < here < ranks
    return has_several_hosts(environ)


def _torchrun() -> "dict[str, str] | None":
    """The options, with underscores, with which this process is torchrun's agent; None: no
    agent."""
    arguments = iter(command_line()[1:])
    for argument in arguments:
        if argument == "-m":
            name, agents = next(arguments, ""), _AGENT_MODULES
        elif argument in _WITH_VALUE:
            next(arguments, None)
            continue
        elif argument.startswith("-") and argument != "-c":
            continue
        else:
            name, agents = os.path.basename(argument), _AGENT_SCRIPTS
        return _options(arguments) if name in agents else None
    return None


def _options(arguments: "Iterator[str]") -> dict[str, str]:
    """Those before the program that torchrun starts: what follows it is the program's own."""
    found = {}
    for argument in arguments:
        option, equals, value = argument.partition("=")
        name = option.lstrip("-").replace("-", "_")
        if not option.startswith("-"):
            break
        found[name] = value if equals or name in _FLAGS else next(arguments, "")
    return found


def integer(text: str | None) -> int | None:
    """The number that a variable holds; None for a text that is none, and for a huge one."""
    try:
        number = int(text) if text is not None else None
    except ValueError:
        return None
    return number if number is None or abs(number) < 1 << 31 else None


def working_directory() -> str | None:
    """That of the program; None where it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return None


# What launchers and schedulers tell a process by variables, by their documentation: Slurm, PBS,
# LSF, Open MPI, MPICH and Intel MPI, PMIx, Ray, and Kubeflow's PyTorchJob and TrainJob.

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


def launched_rank(environ: "Mapping[str, str]") -> "dict[str, int] | None":
    """Rank, world size, local rank given by MPI or srun; None for one per host, a launcher."""
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


def named_job(environ: "Mapping[str, str]") -> tuple[str, str] | None:
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
    """``JOB``, ``ARRAY_TASK`` of an array, ``.STEP`` if it has all hosts: others may be one job."""
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
