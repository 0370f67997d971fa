"""Compares the scalars that TensorBoard's EventAccumulator reads with the lines of metrics.jsonl; see check."""

import json
import struct
import sys
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator


def single(x):
    """A number as a float of 32 bits, which event files have."""
    return struct.unpack("f", struct.pack("f", x))[0]


def wanted(run, devices):
    """By tag the (step, value) that metrics.jsonl has."""
    out = {}
    for line in (Path(run) / "metrics.jsonl").read_text().splitlines():
        line = json.loads(line)
        if "loss" in line:
            values = {"loss": line["loss"], "learning_rate": line["lr"], "grad_norm": line["grad_norm"], "samples_per_second": line["samples_per_s"]}
            values.update((f"peak_bytes/{name}", n) for name, n in zip(devices, line["peak_bytes"]))
        else:
            before = "validation/" if line.get("validation") else ""
            loss = before + "loss" if before else "test_loss"
            values = {before + "accuracy": line.get("accuracy"), before + "mse": line.get("mse"), loss: line.get("test_loss")}
        for tag, value in values.items():
            if value is not None:
                out.setdefault(tag, []).append((line["step"], single(value)))
    return out


def main():
    run, events = sys.argv[1:]
    read = EventAccumulator(events, size_guidance={SCALARS: 0})
    read.Reload()
    tags = read.Tags()[SCALARS]
    want = wanted(run, [t.removeprefix("peak_bytes/") for t in tags if t.startswith("peak_bytes/")])
    for tag in sorted({*tags, *want}):
        got = [(s.step, s.value) for s in read.Scalars(tag)] if tag in tags else []
        if got != want.get(tag):
            sys.exit(f"{tag}: TensorBoard reads {len(got)} values, and metrics.jsonl has {len(want.get(tag, []))}: {got[:3]}..., {want.get(tag, [])[:3]}...")
        print(f"{tag}: {len(got)} values")


main()
