"""A contestant: a model in torch.distributed.pipelining over Gloo, in two processes.

launch.py starts them; rank 0 reads requests as serve.py describes them:

    {"model": "mlp", "options": {"width": 1024, "depth": 16}, "weights": FILE, "batch": FILE,
        "chunks": 8, "schedule": "1f1b", "balance": [16, 16], "lr": 0.1, "steps": 5}
    {"ms": [210.5], "losses": [...], "threads": 1}      the mean time of a step, and the losses

A step is forward, mean squared error and backward. Where lr is not 0 SGD updates the weights, and
otherwise the gradients are dropped. The first request of a model and schedule loads FILE, which
holds safetensors, and trial steps pick the number of threads of each process. The balance counts
the modules of models.py.
"""

import json
import logging
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining

import models
import serve
import tensorfile

SCHEDULES = {
    'gpipe': pipelining.ScheduleGPipe, '1f1b': pipelining.Schedule1F1B,
    'interleaved': pipelining.ScheduleInterleaved1F1B,
    'zb-v': getattr(pipelining, 'ScheduleZBVZeroBubble', None)}


def rank_of(stage, schedule, size):
    """The rank that has a stage: in a loop, or there and back for zb-v."""
    turn, place = divmod(stage, size)
    return size - 1 - place if schedule == 'zb-v' and turn % 2 else place


class Trainer:
    def __init__(self, request):
        rank, size, schedule = dist.get_rank(), dist.get_world_size(), request['schedule']
        if SCHEDULES[schedule] is None:
            raise ValueError(f'PyTorch {torch.__version__} has no schedule {schedule}')
        model, modules = models.build(request['model'], request['options'])
        models.load(model, tensorfile.read(request['weights']))
        balance, stages, owners, first = request['balance'], [], {}, 0
        for i, n in enumerate(balance):
            part, on = nn.Sequential(*modules[first:first + n]), rank_of(i, schedule, size)
            first += n
            for p in part.parameters():
                owners.setdefault(p, set()).add(on)
            if on == rank:
                device = torch.device('cpu')
                stages.append(pipelining.PipelineStage(part, i, len(balance), device))
        self.parameters = list({p: None for s in stages for p in s.submod.parameters()})
        # Every rank has a copy of a tied parameter and sums the gradients.
        self.tied = [p for p, ranks in owners.items() if len(ranks) > 1]
        batch, chunks = tensorfile.read(request['batch']), request['chunks']
        self.input = (batch['input'],) if any(s.is_first for s in stages) else ()
        self.target = batch['target'] if any(s.is_last for s in stages) else None
        loss, one = models.loss(request['model']), len(balance) == size
        self.schedule = SCHEDULES[schedule](
            stages[0] if one else stages, chunks, scale_grads=False,
            loss_fn=lambda y, t: loss(y, t) / chunks)
        self.threads = self.tune()

    def tune(self):
        """The number of threads with which a step takes least time on the slower rank."""
        found = []
        for n in serve.thread_counts():
            serve.set_threads(n)
            self.run(1, 0)
            ms = torch.tensor([self.run(1, 0)['ms'][0] for _ in range(3)]).min()
            dist.all_reduce(ms, dist.ReduceOp.MAX)
            found.append((float(ms), n))
        return min(found)[1]

    def step(self, lr):
        losses = []
        self.schedule.step(*self.input, target=self.target, losses=losses)
        for p in self.tied:
            dist.all_reduce(p.grad)
        with torch.no_grad():
            for p in self.parameters:
                if lr:
                    p.add_(p.grad, alpha=-lr)
                p.grad = None
        return float(torch.stack(losses).detach().sum()) if losses else None

    def run(self, steps, lr):
        """The answer, on every rank."""
        dist.barrier()
        begin = time.perf_counter()
        losses = [self.step(lr) for _ in range(steps)]
        dist.barrier()
        ms = (time.perf_counter() - begin) * 1e3 / steps
        box = [None] * dist.get_world_size()
        dist.all_gather_object(box, losses if self.target is not None else None)
        losses = next(x for x in box if x is not None)
        return {'ms': [ms], 'losses': losses, 'threads': torch.get_num_threads()}


def told(request):
    """What rank 0 is asked, on every rank."""
    box = [request]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def main():
    logging.disable(logging.WARNING)
    server = serve.Server()
    dist.init_process_group('gloo', timeout=timedelta(minutes=2))
    first = dist.get_rank() == 0
    if first:
        server.hello()
    trainers, key = {}, None
    while request := told(json.loads(sys.stdin.readline() or 'null') if first else None):
        steps, lr = request.pop('steps'), request.pop('lr')
        if request['model'] != key:
            key, trainers = request['model'], {}
        name = request['schedule']
        try:
            if name not in trainers:
                trainers[name] = Trainer(request)
            serve.set_threads(trainers[name].threads)
            answer = trainers[name].run(steps, lr)
        except Exception as e:  # the other rank fails, too, when this one ends
            if first:
                server.write({'error': serve.error(e)})
            os._exit(1)
        if first:
            server.write(answer)
    dist.barrier()
    os._exit(0)  # destroy_process_group can wait for ever for a peer that has ended


if __name__ == '__main__':
    main()
