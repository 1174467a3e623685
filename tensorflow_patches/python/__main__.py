"""`python -m tensorflow.mpi doctor | config | bench`."""

from __future__ import annotations

import argparse

from tensorflow.mpi import _bench, config, doctor


def main() -> int:
    """Parses the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tensorflow.mpi", description="Gradients averaged over MPI ranks."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser(
        "doctor", help="prints what is installed, what the launcher says, and tries an allreduce"
    )
    commands.add_parser("config", help="prints every TF_MPI_ variable with its help (Markdown)")
    bench = commands.add_parser(
        "bench", help="under mpirun: times collectives by size, against plain MPI"
    )
    _bench.add_arguments(bench)
    options = parser.parse_args()
    if options.command == "doctor":
        return doctor.main()
    if options.command == "bench":
        return _bench.main(options)
    print(config.describe())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
