"""horovodrun: `python -m tensorflow.mpi horovodrun -np 2 python train.py`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tensorflow.mpi._src.launch import mpirun

_UNSUPPORTED = {
    "gloo": "tensorflow.mpi uses MPI",
    **dict.fromkeys(
        ("min_np", "max_np", "host_discovery_script"),
        "elastic training is not supported; start a fixed number of ranks with -np",
    ),
    "autotune": "there is no autotuning",
    "jsrun": "start the ranks with jsrun itself",
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="horovodrun", description="Starts ranks with mpirun, like Horovod's horovodrun."
    )
    add = parser.add_argument
    add("-v", "--version", action="store_true", help="prints the version")
    add("-cb", "--check-build", action="store_true", help="prints the available features")
    add("-np", "--num-proc", dest="np", type=int, help="the number of ranks")
    add("-H", "--hosts", help="HOST:RANKS, separated by commas")
    add("-hostfile", "--hostfile", help="a file of hosts, one per line: HOST slots=RANKS")
    add("-p", "--ssh-port", type=int, help="the ssh port of the other hosts")
    add("--mpi-args", default="", help="further options for mpirun")
    add("--tcp", "--tcp-flag", action="store_true", help="uses only TCP between nodes")
    add("--mpi", dest="use_mpi", action="store_true", help="accepted; MPI is always used")
    add("--verbose", action="store_true", help="prints mpirun's command line")
    add("--start-timeout", type=int, help="accepted; the start has its own limits")
    add("--timeline-filename", help="sets TF_MPI_TIMELINE")
    add("--fusion-threshold-mb", type=int, help="sets TF_MPI_FUSION_THRESHOLD")
    add("--no-stall-check", action="store_true", help="sets TF_MPI_STALL_WARNING=0")
    add("--stall-check-warning-time-seconds", type=int, help="sets TF_MPI_STALL_WARNING")
    add("--stall-check-shutdown-time-seconds", type=int, help="sets TF_MPI_STALL_TIMEOUT")
    add("--log-level", help="warning and above set TF_MPI_LOG_LEVEL=warning")
    add("--network-interface", "--network-interfaces", help="for MPI's TCP between nodes")
    refused = "not supported"
    add("--gloo", action="store_true", help=refused)
    add("--min-np", type=int, help=refused)
    add("--max-np", type=int, help=refused)
    add("--host-discovery-script", help=refused)
    add("--autotune", action="store_true", help=refused)
    add("--jsrun", action="store_true", help=refused)
    add("program", nargs=argparse.REMAINDER, help="the command that each rank runs")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Replaces this process by mpirun; returns an exit status if there is nothing to start."""
    parser = _parser()
    options = parser.parse_args(list(arguments))
    if options.version:
        print("tensorflow.mpi's horovodrun, with Horovod 0.28.1's API")
        return 0
    if options.check_build:
        print("Available: TensorFlow, Keras; MPI. Not: PyTorch, MXNet, Gloo, NCCL, DDL, CCL.")
        return 0
    for name, why in _UNSUPPORTED.items():
        if getattr(options, name):
            print(f"horovodrun --{name.replace('_', '-')} is not supported: {why}", file=sys.stderr)
            return 2
    if not options.np or not options.program:
        parser.error("-np and a command are required")
    if options.hosts and options.hostfile:
        parser.error("pass only one of -H and -hostfile")
    try:
        mpirun.run(_command(options), options.verbose)
    except mpirun.LaunchError as error:
        print(f"horovodrun: {error}", file=sys.stderr)
    return 2


def _command(options: argparse.Namespace) -> list[str]:
    hosts = mpirun.given_hosts(options)
    more = mpirun.split(options.mpi_args, "--mpi-args")
    if options.network_interface:
        more += ["--mca", "btl_tcp_if_include", options.network_interface]
    if options.tcp:
        more += ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"]
    if options.ssh_port:
        more += ["--mca", "plm_ssh_args", f"-p {options.ssh_port}"]
    variables = {}
    if options.timeline_filename:
        variables["TF_MPI_TIMELINE"] = options.timeline_filename
    if options.fusion_threshold_mb is not None:
        variables["TF_MPI_FUSION_THRESHOLD"] = f"{options.fusion_threshold_mb}m"
    if options.no_stall_check:
        variables["TF_MPI_STALL_WARNING"] = "0"
    if options.stall_check_warning_time_seconds is not None:
        variables["TF_MPI_STALL_WARNING"] = str(options.stall_check_warning_time_seconds)
    if options.stall_check_shutdown_time_seconds is not None:
        variables["TF_MPI_STALL_TIMEOUT"] = str(options.stall_check_shutdown_time_seconds)
    if (options.log_level or "").upper() in ("WARNING", "ERROR", "FATAL"):
        variables["TF_MPI_LOG_LEVEL"] = "warning"
    return mpirun.command(options.np, options.program, hosts, more, variables)
