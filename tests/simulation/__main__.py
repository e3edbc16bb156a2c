"""`python -m tests.simulation SEED`: runs one seed again, as a failing test names it."""

from __future__ import annotations

import argparse
import logging

import pytest

from tests.simulation.mutations import MUTATIONS
from tests.simulation.world import World


def main() -> None:
    """Raises what the seed meets."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--without", choices=sorted(MUTATIONS), help="with one rule taken away")
    parser.add_argument("--trace", action="store_true", help="print every step")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO if arguments.trace else logging.CRITICAL)
    with pytest.MonkeyPatch.context() as patch:
        world = World(arguments.seed)
        if arguments.without:
            MUTATIONS[arguments.without](world, patch)
        world.trace = print if arguments.trace else None
        world.run(arguments.steps)
    print(f"seed {arguments.seed}: {len(world.server.log)} transactions, {len(world.broker.records)} records, all well")


if __name__ == "__main__":
    main()
