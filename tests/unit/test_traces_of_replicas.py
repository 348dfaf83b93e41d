"""Only replicas can be compared: ranks that reduce gradients of a whole model with all others."""

import pytest

from raysync.errors import ConfigError
from raysync.predict.step_times.rank_step_times import read
from tests.builders.messages import naming, tells
from tests.builders.profiles import sized, step, trace, work

MILLION = 10**6


def within(group, ranks, name, count, number="0"):
    """Return a function from a time to a collective of so many floats in a process group."""
    more = {"Group size": ranks, "Process Group Description": group, "Process Group Name": number}
    return lambda ts: sized(name, count, count, ts, **more)


def program(tmp_path, ranks, collectives_of, world_size=None, steps=4):
    """Write the trace of each rank: in a step it computes, then makes its collectives."""
    for rank in ranks:
        events = []
        for number in range(steps):
            begin = 2000 * number
            events += [step(number), work(begin, 300 + rank, "gemm", "kernel")]
            events += [each(begin + 400) for each in collectives_of(rank)]
        world = {} if world_size is None else {"world_size": world_size}
        trace(tmp_path, f"rank{rank}.json", *events, distributedInfo={"rank": rank, **world})
    return [str(tmp_path)]


# ---- what is refused ----


def sequence_parallel(rank, about="mesh_tp", other="mesh_dp"):
    """Three ranks share each layer: two copies of that. Activations are scattered and gathered."""
    own = within(about, 3, "reduce_scatter_tensor", 8 * MILLION, f"{1 + rank // 3}")
    gathered = within(about, 3, "_allgather_base", 3 * MILLION, f"{1 + rank // 3}")
    return [own, gathered, within(other, 2, "allreduce", 5 * MILLION, f"{3 + rank % 3}")]


@pytest.mark.parametrize("names", [("mesh_tp", "mesh_dp"), ("TENSOR_PARALLEL_GROUP", ""), ("", "")])
@pytest.mark.parametrize(
    ("ranks", "world_size"), [(range(6), None), (range(6), 6), ((0, 3), 6), ((1,), 6), ((2, 4), 6)]
)
def test_tensor_parallel_ranks_are_refused_by_their_group(tmp_path, names, ranks, world_size):
    """Also if only some ranks are given, as one of each copy."""
    files = program(tmp_path, ranks, lambda rank: sequence_parallel(rank, *names), world_size)
    with pytest.raises(
        ConfigError, match=naming(f"rank{ranks[0]}: {4 * 4 * 8 * MILLION:,} {names[0]} 3")
    ):
        read(files)


@pytest.mark.parametrize("name", ["mesh_tp", "TENSOR_MODEL_PARALLEL_GROUP", "pipe", "my stage"])
def test_a_group_of_all_ranks_that_share_one_model_is_refused_by_its_name(tmp_path, name):
    files = program(tmp_path, range(4), lambda _: [within(name, 4, "allreduce", MILLION)], 4)
    with pytest.raises(ConfigError, match=naming(f"rank0: {16 * MILLION:,} {name} 4")):
        read(files)


def test_two_copies_without_their_activations_are_refused_for_their_ranks(tmp_path):
    files = program(tmp_path, range(4), lambda _: [within("", 2, "allreduce", MILLION)])
    with pytest.raises(ConfigError, match=naming("rank0: 2")):
        read(files)


def stage(rank):
    """Send activations on, and average a loss over all."""
    kind = "send" if rank % 2 else "recv"
    return [within("mesh_pp", 4, kind, MILLION), within("default_pg", 4, "allreduce", 1)]


@pytest.mark.parametrize(
    "collectives_of",
    [
        stage,
        lambda _: [within("", 4, "all_to_all", 9), within("", 4, "_allgather_base", 9)],
        lambda _: [lambda ts: work(ts, 100, "ncclDevKernel_SendRecv", "kernel")],
        lambda _: [lambda ts: work(ts, 100, "c10d::broadcast_")],
    ],
    ids=["a pipeline", "gathered", "kernels", "on a CPU"],
)
@pytest.mark.parametrize("world_size", [None, 4])
def test_without_a_reduction_of_gradients_ranks_are_no_replicas(
    tmp_path, collectives_of, world_size
):
    files = program(tmp_path, range(4), collectives_of, world_size)
    with pytest.raises(ConfigError, match=naming("rank0: pipeline")):
        read(files)


def test_ranks_of_one_program_that_never_meet_are_refused_and_programs_of_their_own_are_not(
    tmp_path,
):
    assert len(read(program(tmp_path, range(3), lambda _: [])).steps) == 3
    with pytest.raises(ConfigError, match=naming("rank0:")):
        read(program(tmp_path, range(3), lambda _: [], world_size=3))


GRADIENTS = within("default_pg", 4, "allreduce", MILLION)


@pytest.mark.parametrize(
    "others",
    [
        [],
        [within("another", 4, "allreduce", MILLION)],
        [lambda ts: work(ts, 100, "ncclDevKernel_AllReduce_Sum", "kernel")],
        [within("default_pg", 4, "broadcast", MILLION)],
    ],
    ids=["none", "another", "unmarked", "broadcast"],
)
def test_a_rank_whose_trace_lacks_a_group_of_the_others_is_named(tmp_path, call, others):
    program(tmp_path, range(4), lambda rank: others if rank == 2 else [GRADIENTS], 4)
    code, out, err = call("whatif", ".", "--link", "1gbit")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert tells(err, "rank2: default_pg 4")


# ---- what is accepted, and the size of its gradients ----


def hybrid(rank, shards=2, count=MILLION):
    """Hybrid FSDP: gradients are scattered in a group, and each shard is reduced over groups."""
    return [
        within("mesh_shard", shards, "_allgather_base", count // shards, f"{rank // shards}"),
        within("mesh_shard", shards, "_reduce_scatter_base", count, f"{rank // shards}"),
        within("mesh_replicate", 4 // shards, "allreduce", count // shards, f"{9 + rank % shards}"),
    ]


ACCEPTED = {
    "ddp": lambda _: [GRADIENTS],
    "two groups of all ranks": lambda _: [
        within("default_pg", 4, "allreduce", 3 * MILLION // 4, "0"),
        within("embeddings", 4, "allreduce", MILLION // 4, "1"),
    ],
    "fsdp": lambda _: [
        within("mesh_dp", 4, "_allgather_base", MILLION // 4),
        within("mesh_dp", 4, "_allgather_base", MILLION // 4),
        within("mesh_dp", 4, "_reduce_scatter_base", MILLION),
    ],
    "hybrid fsdp": hybrid,
    "measures": lambda _: [
        GRADIENTS,
        within("pair", 2, "allreduce", 200),
        within("tp", 4, "allreduce", 1),
    ],
    "with its data": lambda _: [within("mesh_dp_tp", 4, "allreduce", MILLION)],
}


@pytest.mark.parametrize("world_size", [None, 4])
@pytest.mark.parametrize("name", ACCEPTED)
def test_replicas_have_the_gradients_of_a_million_floats(tmp_path, name, world_size):
    times = read(program(tmp_path, range(4), ACCEPTED[name], world_size))
    assert times.exchanged_bytes == 4 * MILLION
    assert times.shortest == 4


def test_trainers_among_other_ranks_of_a_program_are_replicas_of_each_other(tmp_path):
    """Two of five ranks train; the others only draw samples, and have no traces."""
    trainers = within("trainers", 2, "allreduce", MILLION)
    times = read(program(tmp_path, (0, 1), lambda _: [trainers], world_size=5))
    assert times.exchanged_bytes == 4 * MILLION
