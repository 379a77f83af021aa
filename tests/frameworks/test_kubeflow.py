"""The manifests of ``docs/cluster.md``: as pods they tell a hang.

There is no cluster here. A pod is a process with its own host name and file of hosts, and with the
variables that training-operator 1.9 (``pytorch/envvar.go``) and Trainer 2.3 (``plugins/torch``)
set; labels are those of training-operator and of JobSet. Only the port is a free one.
"""

from __future__ import annotations

import contextlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from disttrace_viewer.merge.reader import load
from frameworks.test_frameworks import disttrace, running, wait_for
from support.processes import ROOT, clean_environ, free_port

yaml = pytest.importorskip("yaml")
pytestmark = pytest.mark.long

TRAINING = """
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
for step in range(4):
    if step == 2 and dist.get_rank() == 1:
        time.sleep(600)  # here it hangs
    dist.all_reduce(torch.ones(4))
"""
LINE = next(n for n, text in enumerate(TRAINING.splitlines(), 1) if "here it hangs" in text)
KINDS = ("PyTorchJob", "TrainJob")


def manifest(kind: str) -> dict[str, Any]:
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    blocks = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    (found,) = (block for block in blocks if block["kind"] == kind)
    assert isinstance(found, dict)
    return found


@dataclass(frozen=True)
class Pod:
    """What the kubelet would start."""

    host: str
    command: list[str]
    variables: dict[str, str]


def pods(kind: str, port: int) -> list[Pod]:
    """Two, as the operator makes them of the manifest."""
    job = manifest(kind)
    name, spec = job["metadata"]["name"], job["spec"]
    if kind == "TrainJob":
        hosts = [f"{name}-node-0-{index}" for index in range(spec["trainer"]["numNodes"])]
        container, label = spec["trainer"], "jobset.sigs.k8s.io/jobset-name"
        master = f"{hosts[0]}.{name}"
        each = {"PET_NPROC_PER_NODE": str(container["numProcPerNode"])}
    else:
        hosts = [f"{name}-master-0", f"{name}-worker-0"]
        (container,) = spec["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"]
        label, master = "training.kubeflow.org/job-name", hosts[0]
        each = {"PET_NPROC_PER_NODE": spec["nprocPerNode"], "PYTHONUNBUFFERED": "1"}
        each |= {"MASTER_ADDR": master, "MASTER_PORT": str(port), "WORLD_SIZE": str(len(hosts))}
    own = {}
    for one in container["env"]:
        field = one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        own[one["name"]] = {f"metadata.labels['{label}']": name}[field] if field else one["value"]
    each |= {"PET_NNODES": str(len(hosts)), "PET_MASTER_ADDR": master, "PET_MASTER_PORT": str(port)}
    each |= {"KUBERNETES_SERVICE_HOST": "10.0.0.1", **own}
    rank = {} if kind == "TrainJob" else {"RANK": "?"}
    return [
        Pod(
            host,
            container["command"],
            {**each, "HOSTNAME": host, **dict.fromkeys(["PET_NODE_RANK", *rank], str(index))},
        )
        for index, host in enumerate(hosts)
    ]


@pytest.mark.parametrize("named", [True, False], ids=["label", "pods"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_hang_in_a_pod_is_told(kind: str, named: bool, tmp_path: Path) -> None:
    """With rank and line, under the job's name: by its label, or by the pods' names alone."""
    made, out = pods(kind, free_port()), tmp_path / "journals"
    (tmp_path / "train.py").write_text(TRAINING)
    names = " ".join(f"{pod.host} {pod.host}.llama" for pod in made)
    (tmp_path / "hosts").write_text(f"127.0.0.1 localhost {names}\n")
    start = f'mount --bind {tmp_path}/hosts /etc/hosts && hostname "$HOSTNAME" && exec "$@"'
    space = ["unshare", "--user", "--map-root-user", "--mount", "--uts", "sh", "-c", start, "sh"]
    bin_folder = Path(sys.executable).parent
    with contextlib.ExitStack() as ended:
        said = []
        for pod in made:
            variables = dict(pod.variables)
            variables["DISTTRACE_DIR"] = variables["DISTTRACE_DIR"].replace("/journals", str(out))
            if not named:
                assert variables.pop("DISTTRACE_JOB") == "llama"
            environ = clean_environ(OMP_NUM_THREADS="1", DISTTRACE_STALL="5", **variables)
            words = [word.replace("/workspace", str(tmp_path)) for word in pod.command]
            words[0] = str(bin_folder / words[0])
            process = running([*space, *words], environ, tmp_path / pod.host)
            said.append(ended.enter_context(process))
        told = wait_for(r"^.*disttrace: stalled.*never joined.*$", *said)
        assert f"rank 1 is at train.py:{LINE}" in told
        assert "all_reduce #3" in told
        # While it hangs: pods end one after the other, and the first one's end ends the wait.
        diagnosed = orjson.loads(disttrace("diagnose", str(out), "--stall", "3", "--json").stdout)
    first = diagnosed["findings"][0]
    assert (first["kind"], first["culprit_ranks"]) == ("missing_participant", [1])
    processes = load([str(out)]).processes
    assert {process.job for process in processes} == {"llama"}
    assert {process.host for process in processes} == {pod.host for pod in made}
