"""A contestant: a model in PyTorch on the whole batch at once, eager or with torch.compile.

    {"model": "mlp", "options": {"width": 1024, "depth": 16}, "input": [256, 1024], "tokens": 0,
        "target": [256, 1024], "parameters": 16793600, "device": "cpu:0", "precision": "",
        "deterministic": true, "compile": false, "trial": 1.0, "seconds": 0.5}
    {"ms": [...], "threads": 2}

The precision is "" for float32, "tf32" or "bfloat16". With one of these the answer has also
"flops", the floating-point operations of a step, and "product", those a second of a large product.

A step is forward, loss, backward, and dropping the gradients. A trial of some seconds picks the
number of threads when the model or compile change.
"""

import torch

import models
import serve


class Trainer:
    def __init__(self, spec):
        torch.manual_seed(7)
        self.device, self.autocast = serve.set_up(spec)
        with serve.made_on(self.device):
            self.model, _ = models.initialised(spec)
        self.batch = serve.batch(spec, self.device)
        self.loss = models.loss(spec['model'])
        if self.device.type == 'cpu':
            make = self.compiled if spec['compile'] else lambda threads: self.eager
            self.step, self.threads = serve.tuned(make, spec['trial'])
        else:
            self.step = self.compiled(1) if spec['compile'] else self.eager
            self.step()
            self.threads = torch.get_num_threads()
        self.more = {}
        if spec['precision']:
            from torch.utils.flop_counter import FlopCounterMode  # PyTorch 1.13 has none
            with FlopCounterMode(display=False) as counter:
                self.eager()
            self.more = {'flops': counter.get_total_flops(), 'product': serve.product_rate(self.device, spec['precision'])}

    def compiled(self, threads):
        torch._dynamo.reset()
        forward = torch.compile(self.forward, dynamic=False)

        def step():
            self.backward(forward(*self.batch))

        step()
        step()
        return step

    def forward(self, x, target):
        with self.autocast():
            return self.loss(self.model(x), target)

    def eager(self):
        self.backward(self.forward(*self.batch))

    def backward(self, loss):
        loss.backward()
        self.model.zero_grad(set_to_none=True)
        serve.wait(self.device)


def main():
    serve.Server().serve(serve.steps(Trainer))


if __name__ == '__main__':
    main()
