"""Trains the benchmark's models as plain PyTorch when asked to: the whole batch at once, on as many threads as are asked for.

First it writes a line about itself: {"torch": "1.13.0", "blas": "the kernels' name"}. Then it reads requests, one JSON object a line, and answers each with one:

    {"model": "mlp", "options": {"width": 1024, "depth": 16}, "input": [256, 1024], "tokens": 0, "target": [256, 1024], "threads": 2, "device": "cpu",
     "seconds": 0.5}
    {"ms": [...], "cpu_ms": 402.1, "parameters": 16793600}      each step: forward, mean squared error, backward, gradients dropped; the mean processor time
                                                               of a step; the trainable numbers. The input is of whole numbers below tokens, or of floats

or {"error": "..."}. It ends when its input does.
"""

import json
import sys
import time
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parent.parent / 'pipelining'))

import blas  # noqa: E402
import models  # noqa: E402


class Trainer:
    def __init__(self, request):
        torch.manual_seed(7)
        torch.set_num_threads(request['threads'])
        self.device = torch.device(request['device'])
        self.model, _ = models.build(request['model'], request['options'])
        if request['model'] == 'gpt':
            torch.nn.init.normal_(self.model.embed.position)  # which a file would give
        self.model.to(self.device)
        self.loss = models.loss(request['model'])
        tokens = request['tokens']
        self.input = (torch.randint(tokens, request['input']) if tokens else torch.randn(request['input'])).to(self.device)
        self.target = torch.randn(request['target']).to(self.device)
        self.step()

    def step(self):
        self.loss(self.model(self.input), self.target).backward()
        self.model.zero_grad(set_to_none=True)
        if self.device.type == 'cuda':
            torch.cuda.synchronize(self.device)

    def run(self, seconds):
        ms, begin, worked = [], time.perf_counter(), time.process_time()
        while not ms or time.perf_counter() - begin < seconds:
            start = time.perf_counter()
            self.step()
            ms.append((time.perf_counter() - start) * 1e3)
        return {'ms': ms, 'cpu_ms': (time.process_time() - worked) * 1e3 / len(ms), 'parameters': sum(p.numel() for p in self.model.parameters())}


def main():
    out, sys.stdout = sys.stdout, sys.stderr  # nothing but answers

    def write(answer):
        print(json.dumps(answer), file=out, flush=True)

    write({'torch': torch.__version__, 'blas': blas.core()})
    key, trainer = None, None
    for line in sys.stdin:
        try:
            request = json.loads(line)
            seconds = request.pop('seconds')
            if request != key:
                key, trainer = request, Trainer(request)
            write(trainer.run(seconds))
        except Exception as e:  # whatever went wrong is the answer
            write({'error': f'{type(e).__name__}: {e}'})


if __name__ == '__main__':
    main()
