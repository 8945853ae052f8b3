"""Profile updates of an agent or of IDM fits: the device's kernels by the time that they take.

    python benchmarks/kernels.py dt:256:1 td3bc:5120:30     # AGENT:BATCH:RUNS as in agent_speed.py; on a GPU, 60 s each
    python benchmarks/kernels.py idm:paper:12               # idm:CONFIG:FITS
    python benchmarks/kernels.py bc:64:1 --updates 4        # on a CPU: XLA's operations on its threads

So many updates compile and as many again are recorded by JAX's profiler (an IDM's with a look at the validation error,
of which there is one in a thousand steps otherwise). `idle` is the share of time between the first and the last kernel
in which none ran; on a CPU operations hold one another, and it means little. Lines go to --store as JSON. Should a GPU
tell of graphs instead of kernels: XLA_FLAGS=--xla_gpu_enable_command_buffer= .
"""

import argparse
import json
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
from agent_speed import noise
from jax.profiler import ProfileData

from ssorl.agents import make
from ssorl.idm import IDMS

Event = tuple[str, float, float]  # name, start and length in nanoseconds


class SeenError(Exception):
    """The profile is recorded, so the rest of the training is not needed."""


def recorded(case: str, updates: int, folder: str) -> float:
    """Do two calls of the device: the first compiles, the second is recorded. Return the seconds of the second."""
    name, which, many = case.split(":")
    eps, calls, took = noise(), [], []
    module = import_module("ssorl.idm.fit" if name == "idm" else "ssorl.training.engine")
    place = "_chunk" if name == "idm" else "chunk"
    plain = getattr(module, place)

    def watched(*args: Any) -> Any:
        jax.block_until_ready(args)
        calls.append(len(calls))
        if len(calls) == 1:
            return jax.block_until_ready(plain(*args))
        began = time.perf_counter()
        with jax.profiler.trace(folder):
            jax.block_until_ready(plain(*args))
        took.append(time.perf_counter() - began)
        raise SeenError

    with suppress(SeenError), mock.patch.object(module, place, watched):
        if name == "idm":
            config = replace(IDMS[which], steps=2 * updates, validate_every=updates)
            module.fit_many([(eps, seed) for seed in range(int(many))], config)
        else:
            agent = make(name, batch=int(which), updates=2 * updates)
            module.train_many(agent, [module.Run(eps, seed) for seed in range(int(many))], every=updates)
    return took[0]


def events_in(folder: str) -> tuple[str, list[Event]]:
    """Return the source of the events, and the events."""
    data = ProfileData.from_file(str(max(Path(folder).rglob("*.xplane.pb"))))
    planes = {plane.name: plane for plane in data.planes}
    device = next((name for name in sorted(planes) if name.startswith("/device:") and "CUSTOM" not in name), None)
    lines = list(planes[device or "/host:CPU"].lines)
    # A GPU's streams have their own lines; other lines repeat the kernels by module or operation.
    own = [line for line in lines if line.name.startswith("Stream" if device else "tf_XLA")] or lines
    return device or "/host:CPU", [(e.name, e.start_ns, e.duration_ns) for x in own for e in x.events if e.duration_ns]


def idle(events: list[Event]) -> float:
    """Return the share of the time from first to last event that no event covers."""
    spans = sorted((start, start + length) for _, start, length in events)
    covered, end = 0.0, spans[0][0]
    for start, stop in spans:
        covered += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return 1 - covered / (end - spans[0][0])


def measure(case: str, updates: int, rows: int) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        took = recorded(case, updates, folder)
        plane, events = events_in(folder)
    record = {"case": case, "updates": updates, "plane": plane, "recorded_s": round(took, 2)}
    record |= {"device": jax.devices()[0].device_kind, "jax": jax.__version__}
    if not events:
        return record | {"error": "the profiler saw no kernel: there is no device's plane in what it wrote"}
    times: dict[str, list[float]] = defaultdict(list)
    for name, _, length in events:
        times[name].append(length)
    total = sum(sum(t) for t in times.values())
    record |= {"kernels_per_update": round(len(events) / updates, 1), "us_per_update": round(total / updates / 1e3, 1)}
    record |= {"idle": round(idle(events), 3), "kinds": len(times)}
    most = sorted(times.items(), key=lambda item: -sum(item[1]))
    record["kernels"] = [
        {
            "share": round(sum(t) / total, 4),
            "calls": round(len(t) / updates, 2),
            "us": round(float(np.mean(t)) / 1e3, 2),
            "name": name,
        }
        for name, t in most[:rows]
    ]
    return record


def show(record: dict) -> None:
    print(json.dumps({k: v for k, v in record.items() if k != "kernels"}))
    if "kernels" in record:
        print("  share  calls/update   us each  kernel")
    for k in record.get("kernels", ()):
        print(f"{k['share']:7.2%} {k['calls']:13.2f} {k['us']:9.1f}  {k['name'][:90]}", flush=True)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("case", nargs="+", help="AGENT:BATCH:RUNS or idm:CONFIG:FITS")
    p.add_argument("--updates", type=int, default=20, help="updates to profile; a multiple of the agent's period")
    p.add_argument("--rows", type=int, default=60, help="kernels to list")
    p.add_argument("--store", type=Path)
    args = p.parse_args()
    for case in args.case:
        record = measure(case, args.updates, args.rows)
        show(record)
        if args.store:
            with args.store.open("a") as file:
                file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
