"""A contestant: models on torchgpipe, whose folder TORCHGPIPE names.

    bench.py [CORE]

With an argument it runs as fast as it can be made from outside: with OpenBLAS's kernels for CORE
unless it is "-", with tcmalloc if it is installed, and with the number of threads that a trial
picks. Requests, as serve.py describes them:

    {"model": "mlp", "options": {"width": 1024, "depth": 16}, "input": [256, 1024], "tokens": 0,
        "target": [256, 1024], "chunks": 4, "checkpoint": "never", "balance": [16, 16],
        "parameters": [...], "trial": 1.0, "seconds": 0.5}
    {"ms": [...], "threads": 2}     parameters are numbers by layer, which are checked

    {"cell": {"stages": 2, "chunks": 32, "width": 8, "rows": 2, "blocks": 20}}
    {"pipe_us": [...], "plain_us": [...]}   of each stage and micro-batch, in alternating blocks

A step is forward, mean squared error, backward, and dropping the gradients.
"""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, os.environ['TORCHGPIPE'])
TCMALLOC = '/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4'
if len(sys.argv) > 1 and 'TUNED' not in os.environ:
    os.environ['TUNED'] = '1'
    if sys.argv[1] != '-':
        os.environ['OPENBLAS_CORETYPE'] = sys.argv[1]
    if os.path.exists(TCMALLOC):
        os.environ['LD_PRELOAD'] = TCMALLOC
    os.execv(sys.executable, [sys.executable, '-B', *sys.argv])

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torchgpipe import GPipe  # noqa: E402

sys.path.append(str(Path(__file__).parent.parent))

import networks  # noqa: E402
import serve  # noqa: E402


class Trainer:
    more = {}

    def __init__(self, request):
        torch.manual_seed(7)
        balance = request['balance']
        model = networks.build(request['model'], request['options'])
        serve.check(request, networks.parameters(model))
        self.model = GPipe(
            networks.cuttable(model, balance), balance, devices=['cpu'] * len(balance),
            chunks=request['chunks'], checkpoint=request['checkpoint'])
        self.input, self.target = serve.batch(request)
        self.step()
        self.threads = torch.get_num_threads()
        if 'TUNED' in os.environ:
            _, self.threads = serve.tuned(lambda threads: self.step, request['trial'])

    def step(self):
        F.mse_loss(self.model(self.input), self.target).backward()
        self.model.zero_grad(set_to_none=True)


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
    steps = serve.steps(Trainer)
    serve.Server().serve(lambda request: cell(**request['cell']) if 'cell' in request else steps(request))


if __name__ == '__main__':
    main()
