"""`python -m tensorflow.mpi doctor | config | bench`."""

from __future__ import annotations

import argparse

from tensorflow.mpi import config, doctor
from tensorflow.mpi._src.observability import bench, nodes


def main() -> int:
    """Parses the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tensorflow.mpi", description="Gradients averaged over MPI ranks."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    doctor_parser = commands.add_parser(
        "doctor", help="prints what is installed, what the launcher says, and tries an allreduce"
    )
    nodes.add_arguments(doctor_parser)
    commands.add_parser("config", help="prints every TF_MPI_ variable with its help (Markdown)")
    bench_parser = commands.add_parser(
        "bench", help="under mpirun: times collectives by size, against plain MPI"
    )
    bench.add_arguments(bench_parser)
    options = parser.parse_args()
    if options.command == "doctor":
        return nodes.main(options) if options.nodes else doctor.main()
    if options.command == "bench":
        return bench.main(options)
    print(config.describe())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
