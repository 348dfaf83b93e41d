"""What Hypothesis draws: schedules for a machine, and whole clusters with their faults."""

from hypothesis import strategies as st

from raysync.core.events import Joined, Left
from raysync.randomness import uniform

BYTES = 64
"""Of a vector of `tests.builders.virtual.SMALL`: 12 weights and 4 biases of 4 bytes."""


@st.composite
def schedules(draw):
    """Step times and churn: (step_s, events)."""
    seed = draw(st.integers(0, 10**6))
    workers = [f"w-{i}#1" for i in range(draw(st.integers(1, 6)))]
    spread = draw(st.sampled_from([0.0, 0.2, 0.9]))
    speed = {worker: draw(st.sampled_from([0.5, 1.0, 1.0, 2.0])) for worker in workers}
    churn = [Joined(at=draw(st.sampled_from([0.0, 0.0, 2.5])), worker=worker) for worker in workers]
    churn += [
        Left(at=draw(st.floats(3, 30)), worker=worker)
        for worker in workers[1:]
        if draw(st.integers(0, 3)) == 0
    ]

    def step_s(worker, clock):
        return speed[worker] * (1 + spread * (uniform(seed, "step", worker, clock) - 0.5))

    return step_s, churn


def workers():
    jitter = st.sampled_from(
        [
            {},
            {"sigma": 0.4},
            {"distribution": "exponential"},
            {"distribution": "normal", "sigma": 0.3},
            {"distribution": "pareto", "tail": 1.5},
            {"distribution": "empirical", "samples": [0.5, 1.0, 4.0]},
        ]
    )
    link = st.fixed_dictionaries(
        {
            "latency_s": st.sampled_from([0, 0.1]),
            "bandwidth_bytes_per_s": st.sampled_from([None, 4 * BYTES]),
        }
    )
    group = st.fixed_dictionaries(
        {
            "count": st.integers(1, 3),
            "step_s": st.sampled_from([0.5, 1, 1, 2.5]),
            "jitter": jitter,
            "link": link,
            "start_s": st.sampled_from([0, 0, 1.5]),
        }
    )
    return st.lists(group, min_size=1, max_size=3).map(
        lambda groups: [group | {"name": name} for name, group in zip("abc", groups, strict=False)]
    )


def networks():
    return st.fixed_dictionaries(
        {
            "link": st.fixed_dictionaries({"latency_s": st.sampled_from([0, 0.05])}),
            "server_bandwidth_bytes_per_s": st.sampled_from([None, 10 * BYTES, BYTES]),
            "update_s": st.sampled_from([0, 0.2]),
            "update_bytes_per_s": st.sampled_from([None, 20 * BYTES]),
        }
    )


def windows():
    once = st.builds(
        lambda start, lasts: {"start_s": start, "lasts_s": lasts},
        st.floats(0, 20),
        st.floats(0.1, 10),
    )
    clocks = st.builds(
        lambda start, lasts: {"clocks": [start, start + lasts]},
        st.integers(0, 15),
        st.integers(1, 5),
    )
    times = st.builds(lambda times: {"times": times, "end_s": 25, "lasts_s": 5}, st.integers(1, 4))
    often = st.just({"mean_gap_s": 3, "lasts_s": 1, "end_s": 18})
    return st.one_of(once, clocks, times, often)


def faults(slots):
    whom = st.one_of(
        st.just({}), st.builds(lambda count: {"count": count}, st.integers(1, min(3, len(slots))))
    )
    kinds = [
        st.builds(
            lambda factor: {"kind": "slow-down", "factor": factor}, st.sampled_from([1.5, 3, 8])
        ),
        st.builds(
            lambda added_s: {"kind": "latency", "added_s": added_s}, st.sampled_from([0.1, 1.5])
        ),
        st.builds(
            lambda period: {"kind": "drift", "added_s": 1, "period_s": period},
            st.sampled_from([0.5, 4]),
        ),
        st.builds(
            lambda period: {"kind": "speed-drift", "sigma": 0.3, "period_s": period},
            st.sampled_from([0.5, 4]),
        ),
    ]
    moment = st.one_of(
        st.builds(lambda at: {"at_s": at}, st.floats(0, 25)),
        st.builds(lambda clock: {"at_clock": clock}, st.integers(0, 15)),
    )
    back = st.one_of(
        st.just({}), st.builds(lambda s: {"rejoin_after_s": s}, st.sampled_from([0, 0.3, 4]))
    )
    crash = st.builds(
        lambda slot, when, then: {"kind": "crash", "worker": slot} | when | then,
        st.sampled_from(slots),
        moment,
        back,
    )
    kill = st.builds(
        lambda when, whom: {"kind": "kill"} | when | whom,
        st.one_of(
            st.builds(lambda at: {"at_s": at}, st.floats(0, 12)),
            st.just({"mean_gap_s": 4, "end_s": 12}),
            st.just({"times": 2, "start_s": 3, "end_s": 12}),
        ),
        whom,
    )
    lasting = [
        st.builds(lambda what, when, slots: what | when | slots, kind, windows(), whom)
        for kind in kinds
    ]
    return st.lists(st.one_of(*lasting, crash, crash, crash, kill), max_size=6)


@st.composite
def plans(draw):
    groups = draw(workers())
    slots = [f"{group['name']}-{n}" for group in groups for n in range(group["count"])]
    return {
        "seed": draw(st.integers(0, 1000)),
        "workers": groups,
        "network": draw(networks()),
        "faults": draw(faults(slots)),
        "cluster": {
            "server_shards": draw(st.integers(1, 3)),
            "step_deadline_s": 1e6,
            "restarts": {"attempts": draw(st.sampled_from([0, 6]))},
            "server_placement": draw(st.sampled_from(["apart", "with-workers"])),
        },
    }
