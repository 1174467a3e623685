"""examples/cluster: checks the MPIJob against its CRD, and the image against the tree.

Runs neither a cluster nor a container engine. tests/slurm runs slurm.sbatch.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from wheelbuilder.layout import CPU, Layout
from wheelbuilder.lock import for_version, read_lock

ROOT = Path(__file__).parents[1]
CLUSTER = ROOT / "examples/cluster"
JOB: dict[str, Any] = yaml.safe_load((CLUSTER / "mpijob.yaml").read_text())
IMAGE = (CLUSTER / "Dockerfile").read_text()

# From the CRD mpijobs.kubeflow.org, v2beta1, of mpi-operator v0.8.0
# (manifests/base/kubeflow.org_mpijobs.yaml): fields and types; for pod templates, only the fields
# unrelated to scheduling. "!" marks required fields.
POD_VOLUME = {"name!": str, "persistentVolumeClaim": {"claimName!": str}, "emptyDir": dict}
CONTAINER = {
    "name!": str,
    "image": str,
    "workingDir": str,
    "command": [str],
    "args": [str],
    "env": [{"name!": str, "value": str}],
    "resources": {"limits": dict, "requests": dict},
    "securityContext": {"runAsUser": int},
    "volumeMounts": [{"name!": str, "mountPath!": str}],
}
REPLICAS = {
    "replicas": int,
    "restartPolicy": str,
    "template": {"spec": {"containers!": [CONTAINER], "volumes": [POD_VOLUME]}},
}
FIELDS = {
    "apiVersion": str,
    "kind": str,
    "metadata": {"name": str},
    "spec": {
        "launcherCreationPolicy": {"AtStartup", "WaitForWorkersReady"},
        "mpiImplementation": {"OpenMPI", "Intel", "MPICH"},
        "mpiReplicaSpecs!": {"Launcher!": REPLICAS, "Worker": REPLICAS},
        "runLauncherAsWorker": bool,
        "runPolicy": {
            "activeDeadlineSeconds": int,
            "backoffLimit": int,
            "cleanPodPolicy": {"None", "Running", "All"},
            "suspend": bool,
            "ttlSecondsAfterFinished": int,
        },
        "slotsPerWorker": int,
        "sshAuthMountPath": str,
    },
}


def wrong(value: Any, fields: Any, path: str = "") -> list[str]:
    """The places where `value` does not match `fields`."""
    if isinstance(fields, dict):
        if not isinstance(value, dict):
            return [f"{path}: {value!r} has no fields"]
        known = {name.rstrip("!"): form for name, form in fields.items()}
        needed = {name[:-1] for name in fields if name.endswith("!")}
        found = [f"{path}.{name}: unknown" for name in value.keys() - known.keys()]
        found += [f"{path}.{name}: missing" for name in needed - value.keys()]
        for name in value.keys() & known.keys():
            found += wrong(value[name], known[name], f"{path}.{name}")
        return found
    if isinstance(fields, list):
        if not isinstance(value, list):
            return [f"{path}: {value!r} is not a list"]
        return [
            error for i, one in enumerate(value) for error in wrong(one, fields[0], f"{path}[{i}]")
        ]
    if isinstance(fields, set):
        return [] if value in fields else [f"{path}: {value!r} is not one of {sorted(fields)}"]
    right = isinstance(value, fields) and (fields is bool or not isinstance(value, bool))
    return [] if right else [f"{path}: {value!r} is not {fields.__name__}"]


def container(role: str) -> dict[str, Any]:
    (only,) = JOB["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]["containers"]
    return only


def test_the_job_matches_its_crd():
    assert wrong(JOB, FIELDS) == []
    assert (JOB["apiVersion"], JOB["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"slots": 2}, ".slots: unknown"),
        ({"slotsPerWorker": "2"}, ".slotsPerWorker: '2' is not int"),
        ({"mpiImplementation": "Open MPI"}, ".mpiImplementation: 'Open MPI' is not one of"),
        ({"mpiReplicaSpecs": {"Worker": {}}}, ".mpiReplicaSpecs.Launcher: missing"),
    ],
)
def test_a_job_that_does_not_match_its_crd_is_refused(change, error):
    (found,) = wrong(JOB["spec"] | change, FIELDS["spec"])
    assert found.startswith(error)


def test_the_job_starts_one_rank_per_slot():
    spec = JOB["spec"]
    launcher, worker = container("Launcher"), container("Worker")
    ranks = int(launcher["args"][launcher["args"].index("-np") + 1])
    assert ranks == spec["slotsPerWorker"] * spec["mpiReplicaSpecs"]["Worker"]["replicas"]
    assert worker["resources"]["limits"]["cpu"] == spec["slotsPerWorker"]
    assert launcher["command"] == ["mpirun"]


def test_every_mounted_volume_is_defined():
    for role, replicas in JOB["spec"]["mpiReplicaSpecs"].items():
        pod = replicas["template"]["spec"]
        mounted = {mount["name"] for mount in container(role)["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
    shared = {mount["mountPath"] for mount in container("Worker")["volumeMounts"]}
    assert "/dev/shm" in shared  # for a pod's ranks; a container's default is small


def version() -> str:
    """The TensorFlow version that the tree is developed on."""
    layout = for_version(Layout.of_checkout(ROOT / ".cache", CPU), None)
    return read_lock(layout.lock).version


def instructions() -> list[tuple[str, str]]:
    lines = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", IMAGE, flags=re.M)).splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines) if word]


def test_the_job_and_the_image_agree():
    tag = f"tensorflow-mpi:{version()}"
    assert f"-t {tag} ." in IMAGE
    for role in ("Launcher", "Worker"):
        assert container(role)["image"] == tag
        user = container(role)["securityContext"]["runAsUser"]
        assert f"useradd --uid {user} " in IMAGE
    home = JOB["spec"]["sshAuthMountPath"]
    assert f"HostKey {home}/id_rsa" in IMAGE
    assert container("Worker")["args"][-1] in IMAGE  # sshd's configuration file


def test_the_image_is_built_from_files_of_the_tree():
    found = instructions()
    assert {word for word, _ in found} <= {
        *("FROM", "RUN", "COPY", "ARG", "ENV", "USER", "WORKDIR"),
    }
    # The release of Debian whose Python the Dockerfile's comment names.
    assert {rest.split()[0] for word, rest in found if word == "FROM"} == {"debian:bookworm-slim"}
    commands = [rest for word, rest in found if word == "RUN"]
    for command in commands:
        subprocess.run(["bash", "-n", "-c", command], check=True)
    (install,) = [command for command in commands if command.startswith("/src/")]
    script, *options = install.split()
    assert script == "/src/install.sh" and ("COPY", ". /src") in found
    known = subprocess.run(
        [ROOT / "install.sh", "--help"], capture_output=True, text=True, check=True
    ).stdout
    (comment,) = re.findall(r"^# INSTALL:.*", IMAGE, re.M)
    for option in re.findall(r"--[a-z-]+", f"{install} {comment}"):
        assert re.search(rf"^  (--\w+, )?{option}\b", known, re.M), option
    venv = options[options.index("--venv") + 1]
    assert ("COPY", f"--from=build {venv} {venv}") in found
    assert ("ENV", f"PATH={venv}/bin:$PATH") in found
    ignored = (CLUSTER / "Dockerfile.dockerignore").read_text().split()
    assert not {"build", "tensorflow_patches", "third_party", "wheels", "install.sh"} & {*ignored}


def test_the_apptainer_definition_names_this_trees_wheel():
    (wheel,) = re.findall(r"wheels/(\S+?)-cp", (CLUSTER / "apptainer.sbatch").read_text())
    assert wheel == f"tensorflow-{version()}+{CPU.release}"
