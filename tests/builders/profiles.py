"""Events and traces as torch's profiler writes them."""

import json


def step(number, dur=1000.0, **more):
    return {
        "ph": "X",
        "cat": "user_annotation",
        "name": f"ProfilerStep#{number}",
        "ts": number * 2000,
        "dur": dur,
        **more,
    }


def trace(tmp_path, name, *events, **more):
    path = tmp_path / name
    path.write_text(json.dumps({"traceEvents": [{"ph": "M", "name": "x"}, *events], **more}))
    return str(path)


def work(ts, dur, name="aten::mm", cat="cpu_op"):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur}


def sized(name, count_in, count_out, ts=400, cat="kernel", **more):
    """A collective as torch writes it for NCCL."""
    args = {
        "Collective name": name,
        "In msg nelems": count_in,
        "Out msg nelems": count_out,
        "Group size": 4,
        "dtype": "Float",
        **more,
    }
    return {**work(ts, 100, "record_param_comms" if cat == "cpu_op" else "nccl", cat), "args": args}
