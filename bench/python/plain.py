"""A contestant: a model in PyTorch on the whole batch at once, eager or with torch.compile.

    {"model": "mlp", "options": {"width": 1024, "depth": 16}, "input": [256, 1024], "tokens": 0,
        "target": [256, 1024], "parameters": 16793600, "device": "cpu", "compile": false,
        "trial": 1.0, "seconds": 0.5}
    {"ms": [...], "threads": 2}

A step is forward, loss, backward, and dropping the gradients. A trial of some seconds picks the
number of threads when the model or compile change.
"""

import torch

import models
import serve


class Trainer:
    def __init__(self, spec):
        torch.manual_seed(7)
        self.device = torch.device(spec['device'])
        self.model, _ = models.initialised(spec)
        self.model.to(self.device)
        self.batch = serve.batch(spec, self.device)
        self.loss = models.loss(spec['model'])
        if self.device.type == 'cpu':
            make = self.compiled if spec['compile'] else lambda threads: self.eager
            self.step, self.threads = serve.tuned(make, spec['trial'])
        else:
            self.step = self.compiled(1) if spec['compile'] else self.eager
            self.step()
            self.threads = torch.get_num_threads()

    def compiled(self, threads):
        torch._dynamo.reset()
        forward = torch.compile(lambda x, target: self.loss(self.model(x), target), dynamic=False)

        def step():
            self.backward(forward(*self.batch))

        step()
        step()
        return step

    def eager(self):
        x, target = self.batch
        self.backward(self.loss(self.model(x), target))

    def backward(self, loss):
        loss.backward()
        self.model.zero_grad(set_to_none=True)
        if self.device.type == 'cuda':
            torch.cuda.synchronize(self.device)


def main():
    serve.Server().serve(serve.steps(Trainer))


if __name__ == '__main__':
    main()
