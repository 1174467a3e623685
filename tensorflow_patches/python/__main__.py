"""`python -m tensorflow.mpi doctor | config | bench | horovodrun | ddlrun | commands`."""

from __future__ import annotations

import argparse
import sys

from tensorflow.mpi import config, doctor
from tensorflow.mpi._src.launch import commands, ddlrun, horovodrun
from tensorflow.mpi._src.observability import bench, nodes

_LAUNCH_COMMANDS = {"horovodrun": horovodrun.main, "ddlrun": ddlrun.main}


def main() -> int:
    """Parses the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tensorflow.mpi", description="Gradients averaged over MPI ranks."
    )
    commands_parser = parser.add_subparsers(dest="command", required=True)
    doctor_parser = commands_parser.add_parser(
        "doctor", help="prints the installation and the launcher, and tries an allreduce"
    )
    nodes.add_arguments(doctor_parser)
    config_parser = commands_parser.add_parser(
        "config", help="prints every TF_MPI_ variable with its help (Markdown)"
    )
    config_parser.add_argument(
        "--replaced",
        action="store_true",
        help="instead prints what this wheel replaces in Python, TensorFlow and Keras",
    )
    bench_parser = commands_parser.add_parser(
        "bench", help="under mpirun: times collectives by size, compared with plain MPI"
    )
    bench.add_arguments(bench_parser)
    commands_parser.add_parser("commands", help="writes horovodrun and ddlrun next to this Python")
    for name, run in _LAUNCH_COMMANDS.items():
        commands_parser.add_parser(name, help=f"starts ranks as {name} does", add_help=False)
        if sys.argv[1:2] == [name]:  # parses its own options
            return run(sys.argv[2:])
    options = parser.parse_args()
    if options.command == "commands":
        return commands.main()
    if options.command == "doctor":
        return nodes.main(options) if options.nodes else doctor.main()
    if options.command == "bench":
        return bench.main(options)
    if options.replaced:
        from tensorflow.mpi._src.replaced import table

        print(table.describe())
        return 0
    print(config.describe())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
