"""A contestant: a model in PyTorch that recomputes, with the peak of its tensors.

The first request is a workload, as plain.py has it. Others are of one of two ways to recompute:

    {"segments": 3, "seconds": 0.5}     checkpoint_sequential; 1 checkpoints nothing
    {"budget": 0.5, "seconds": 0.5}     torch.compile's activation_memory_budget
    {"ms": [...], "peak": 123, "live": 45, "threads": 2}

peak counts the bytes of parameters, gradients, batch, activations and workspaces, live those that
stay between steps. {"sweep": 8} tries 1 to 8 segments, and answers {"segments": [...]} with those
that no other number beats in both memory and time.
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
        self.memory = peak.load()
        torch.manual_seed(7)
        self.model, self.modules = models.initialised(spec)
        self.batch, self.loss = serve.batch(spec), models.loss(spec['model'])
        _, self.threads = serve.tuned(lambda threads: self.segmented(1), spec['trial'])
        self.way, self.step = None, None

    def segmented(self, segments):
        def step():
            x, target = self.batch
            if segments > 1:
                y = checkpoint_sequential(self.modules, segments, x, use_reentrant=False)
            else:
                y = self.model(x)
            self.backward(self.loss(y, target))

        return step

    def budgeted(self, budget):
        import torch._functorch.config
        torch._functorch.config.activation_memory_budget = budget
        torch._dynamo.reset()
        forward = torch.compile(lambda x, target: self.loss(self.model(x), target), dynamic=False)
        return lambda: self.backward(forward(*self.batch))

    def backward(self, loss):
        loss.backward()
        self.model.zero_grad(set_to_none=True)

    def answer(self, request):
        if 'sweep' in request:
            return {'segments': self.sweep(request['sweep'])}
        seconds = request.pop('seconds')
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
        found = {}
        for k in range(1, min(most, len(self.modules)) + 1):
            try:
                a = self.answer({'segments': k, 'seconds': 0.3})
            except Exception as e:
                print(f'{k} segments: {serve.error(e)}', file=sys.stderr)
                continue
            found[k] = a['peak'], statistics.median(a['ms'])
        return [k for k, p in found.items() if not any(dominates(q, p) for q in found.values())]


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
