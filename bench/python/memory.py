"""A contestant: a model in PyTorch that recomputes, with the peak of its tensors.

The first request is a workload, as plain.py has it, with a "backend" of torch.compile. Others are of one of two ways to recompute:

    {"segments": 3, "seconds": 0.5}     checkpoint_sequential; 1 checkpoints nothing
    {"budget": 0.5, "seconds": 0.5}     torch.compile's activation_memory_budget
    {"ms": [...], "peak": 123, "live": 45, "threads": 2}

peak counts the bytes of parameters, gradients, batch, activations and workspaces, live those that
stay between steps. {"sweep": 8} tries 1 to 8 segments, and answers {"segments": [...]} with those
that no other number beats in both memory and time, and the peak and live of one segment. Then
{"within": 123, "seconds": 0.5} is for the fastest number of segments that stays within so many bytes.
"""

import statistics
import sys

import torch
from torch.utils.checkpoint import checkpoint_sequential

import models
import peak
import serve


class Trainer:
    def __init__(self, spec):
        self.device, self.autocast = serve.set_up(spec)
        self.memory = peak.load(self.device)
        torch.manual_seed(7)
        with serve.made_on(self.device):
            self.model, self.modules = models.initialised(spec)
        self.batch, self.loss = serve.batch(spec, self.device), models.loss(spec['model'])
        self.threads = 1
        if self.device.type == 'cpu':
            _, self.threads = serve.tuned(lambda threads: self.segmented(1), spec['trial'])
        self.way, self.step, self.found, self.backend = None, None, {}, spec['backend']

    def segmented(self, segments):
        def step():
            x, target = self.batch
            with self.autocast():
                if segments > 1:
                    y = checkpoint_sequential(self.modules, segments, x, use_reentrant=False)
                else:
                    y = self.model(x)
                loss = self.loss(y, target)
            self.backward(loss)

        return step

    def budgeted(self, budget):
        import torch._functorch.config
        torch._functorch.config.activation_memory_budget = budget
        torch._dynamo.reset()

        def forward(x, target):
            with self.autocast():
                return self.loss(self.model(x), target)

        compiled = torch.compile(forward, dynamic=False, backend=self.backend)
        return lambda: self.backward(compiled(*self.batch))

    def backward(self, loss):
        loss.backward()
        self.model.zero_grad(set_to_none=True)
        serve.wait(self.device)

    def answer(self, request):
        if 'sweep' in request:
            segments = self.sweep(request['sweep'])
            return {**self.found[1], 'segments': segments}
        seconds = request.pop('seconds')
        if 'within' in request:
            request = {'segments': self.fastest(request['within'])}
        if request != self.way:
            self.way = self.step = None
            make = self.budgeted if 'budget' in request else self.segmented
            self.step = make(*request.values())
            for _ in range(3):
                self.step()
            self.way = request
        live = self.memory.live()
        self.memory.reset()
        ms = serve.timed(self.step, seconds)
        return {'ms': ms, 'peak': self.memory.peak(), 'live': live, 'threads': self.threads}

    def sweep(self, most):
        for k in range(1, min(most, len(self.modules)) + 1):
            try:
                self.found[k] = self.answer({'segments': k, 'seconds': 0.3})
            except Exception as e:
                print(f'{k} segments: {serve.error(e)}', file=sys.stderr)
        points = {k: (a['peak'], statistics.median(a['ms'])) for k, a in self.found.items()}
        return [k for k, p in points.items() if not any(dominates(q, p) for q in points.values())]

    def fastest(self, limit):
        """The fastest number of segments whose peak is within the limit."""
        fit = [k for k, a in self.found.items() if a['peak'] <= limit]
        if not fit:
            least = min(a['peak'] for a in self.found.values())
            raise ValueError(f'no number of segments stays within {limit} bytes; the least is {least}')
        return min(fit, key=lambda k: statistics.median(self.found[k]['ms']))


def dominates(q, p):
    return q != p and all(a <= b for a, b in zip(q, p))


def main():
    trainer = None

    def answer(request):
        nonlocal trainer
        if 'model' in request:
            trainer = Trainer(request)
            return {}
        return trainer.answer(request)

    serve.Server().serve(answer)


if __name__ == '__main__':
    main()
