"""A contestant: models on torchgpipe. TORCHGPIPE is its folder.

Requests, as serve.py describes them:

    {"model": "mlp", "options": {"width": 1024, "depth": 16}, "input": [256, 1024], "tokens": 0,
        "target": [256, 1024], "chunks": 4, "checkpoint": "never", "balance": [16, 16],
        "seconds": 0.5}
    {"ms": [...], "parameters": [...]}      the numbers of trainable parameters are by layer

    {"cell": {"stages": 2, "chunks": 32, "width": 8, "rows": 2, "blocks": 20}}
    {"pipe_us": [...], "plain_us": [...]}   of each stage and micro-batch, in alternating blocks

A step is forward, mean squared error, backward, and dropping the gradients.
"""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, os.environ['TORCHGPIPE'])

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torchgpipe import GPipe  # noqa: E402

sys.path.append(str(Path(__file__).parent.parent))

import networks  # noqa: E402
import serve  # noqa: E402


class Trainer:
    def __init__(self, request):
        torch.manual_seed(7)
        balance = request['balance']
        model = networks.build(request['model'], request['options'])
        self.parameters = networks.parameters(model)
        self.model = GPipe(
            networks.cuttable(model, balance), balance, devices=['cpu'] * len(balance),
            chunks=request['chunks'], checkpoint=request['checkpoint'])
        self.input, self.target = serve.batch(request)
        self.step()

    def step(self):
        F.mse_loss(self.model(self.input), self.target).backward()
        self.model.zero_grad(set_to_none=True)


class Trainers:
    """Keeps the trainers of the last workload."""

    def __init__(self):
        self.workload, self.trainers = None, {}

    def answer(self, request):
        workload = [request[k] for k in ('model', 'options', 'input', 'chunks', 'checkpoint')]
        if workload != self.workload:
            self.workload, self.trainers = workload, {}
        key = tuple(request['balance'])
        if key not in self.trainers:
            self.trainers[key] = Trainer(request)
        trainer = self.trainers[key]
        ms = serve.timed(trainer.step, request['seconds'])
        return {'ms': ms, 'parameters': trainer.parameters}


def cell(stages, chunks, width, rows, blocks):
    """Steps through GPipe, and the same operators in a plain loop.

    torchgpipe computes the loss once, on the whole output, and so does the loop.
    """
    torch.manual_seed(7)
    parts = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(stages)]
    model = GPipe(
        nn.Sequential(*(layer for part in parts for layer in part)), [2] * stages,
        devices=['cpu'] * stages, chunks=chunks, checkpoint='always')
    x, target = torch.randn(rows * chunks, width), torch.randn(rows * chunks, width)
    first, hidden, gradient = torch.randn(rows, width), torch.randn(rows, width, requires_grad=True), torch.randn(rows, width)
    output = torch.randn(rows * chunks, width, requires_grad=True)

    def piped():
        F.mse_loss(model(x), target).backward()

    def plain():
        for _ in range(chunks):
            with torch.no_grad():
                y = first
                for part in parts:
                    y = part(y)
        F.mse_loss(output, target).backward()
        output.grad = None
        for _ in range(chunks):
            for i, part in enumerate(parts):
                part(hidden if i else first).backward(gradient)
                hidden.grad = None

    def timed(f):
        start = time.perf_counter()
        f()
        return (time.perf_counter() - start) * 1e6 / (stages * chunks)

    pairs = [(timed(piped), timed(plain)) for _ in range(blocks + 2)][2:]
    return {'pipe_us': [p for p, _ in pairs], 'plain_us': [q for _, q in pairs]}


def main():
    server, trainers = serve.Server(), Trainers()
    server.hello(threads=torch.get_num_threads())
    server.serve(lambda r: cell(**r['cell']) if 'cell' in r else trainers.answer(r))


if __name__ == '__main__':
    main()
