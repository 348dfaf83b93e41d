"""Print when the workers of a run began and ended steps, and when their pushes had arrived.

python experiments/network/rounds.py RECORD [ITERATIONS]
"""

import sys

from raysync.record.reader import load


def main() -> None:
    """Print a line for each iteration of each worker, in the order of their arrival."""
    pushes = load(sys.argv[1]).pushes.sort_values("pushed_at_s")
    if len(sys.argv) > 2:
        pushes = pushes[pushes.clock < int(sys.argv[2])]
    print(f"{'worker':12} clock released step    computed arrived pull_s push_s  staleness")
    for push in pushes.itertuples():
        began = push.computed_at_s - push.busy_s
        print(
            f"{push.worker:12} {push.clock:5} {push.released_at_s:8.3f} {began:7.3f}"
            f" {push.computed_at_s:8.3f} {push.pushed_at_s:7.3f} {began - push.released_at_s:6.3f}"
            f" {push.pushed_at_s - push.computed_at_s:6.3f}  {push.staleness}"
        )


if __name__ == "__main__":
    main()
