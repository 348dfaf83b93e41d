"""Measure the hosts of all cases as `raysync calibrate` does: results/profiles/.

    python experiments/network/calibrate.py    (10 minutes, as root)

Predictions are made with these profiles.
"""

import argparse
import sys

from cases import CASES, EXPERIMENT
from hosts import RayHosts, available, ended_by_sigterm
from measure import RAYSYNC

CPUS = (4, 4, 4, 4)
"""What the hosts declare to Ray: room for both servers beside one worker."""


def main() -> None:
    """Measure each size of vectors with each set of rates."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.parse_args()
    if reason := available():
        sys.exit(f"There can be no hosts here: {reason}.")
    cases = {case.profile: case for case in CASES.values() if not case.jitter}
    with ended_by_sigterm(), RayHosts(4, 100e6, CPUS) as hosts:
        for profile, case in cases.items():
            profile.parent.mkdir(exist_ok=True)
            hosts.set_rates(case.rates)
            command = [RAYSYNC, "calibrate", str(profile), str(EXPERIMENT)]
            for setting in case.settings:
                command += ["--set", setting]
            hosts.run(1, command, env=hosts.environment, check=True)


if __name__ == "__main__":
    main()
