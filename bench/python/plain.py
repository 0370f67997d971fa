"""A contestant: a model in PyTorch on the whole batch at once, eager or with torch.compile.

    plain.py '{"model": "mlp", "options": {"width": 1024, "depth": 16}, "input": [256, 1024],
        "tokens": 0, "target": [256, 1024], "threads": 2, "device": "cpu", "compile": false}'

It answers {"seconds": 0.5} with {"ms": [...]}: a step is forward, loss, backward, and dropping the
gradients. Its hello has the number of trainable parameters. serve.py says how it talks.
"""

import json
import sys

import torch

import models
import serve


class Trainer:
    def __init__(self, spec):
        torch.manual_seed(7)
        torch.set_num_threads(spec['threads'])
        self.device = torch.device(spec['device'])
        self.model, _ = models.build(spec['model'], spec['options'])
        if spec['model'] == 'gpt':
            torch.nn.init.normal_(self.model.embed.position)
        self.model.to(self.device)
        self.input, self.target = serve.batch(spec, self.device)
        loss = models.loss(spec['model'])
        self.forward = lambda x, target: loss(self.model(x), target)
        if spec['compile']:
            self.forward = torch.compile(self.forward, dynamic=False)
        for _ in range(3):
            self.step()

    def step(self):
        self.forward(self.input, self.target).backward()
        self.model.zero_grad(set_to_none=True)
        if self.device.type == 'cuda':
            torch.cuda.synchronize(self.device)

    def answer(self, request):
        return {'ms': serve.timed(self.step, request['seconds'])}


def main():
    server = serve.Server()
    try:
        trainer = Trainer(json.loads(sys.argv[1]))
    except Exception as e:
        server.write({'error': serve.error(e)})
        return
    server.hello(parameters=sum(p.numel() for p in trainer.model.parameters()))
    server.serve(trainer.answer)


if __name__ == '__main__':
    main()
