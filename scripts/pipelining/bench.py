"""Trains the benchmark's models with torch.distributed.pipelining when asked to; each process of RANK and
WORLD_SIZE runs it. DEVICE is cpu, with Gloo, or cuda, with NCCL and a GPU for each process.

First rank 0 writes a line about itself: {"torch": "2.6.0", "blas": "the kernels' name"}. Then it reads requests, one JSON object a line, and
answers each with one:

    {"model": "mlp", "options": {"width": 1024, "depth": 16}, "weights": FILE, "batch": FILE, "chunks": 8, "schedule": "1f1b", "balance": [16, 16],
     "lr": 0.1, "steps": 5}
    {"ms": 210.5, "cpu_ms": 402.1, "losses": [...]}      the mean time, the mean processor time of all processes and the losses of so many steps:
                                                        forward, mean squared error, backward, SGD's update

or {"error": "..."}, after which it ends. FILE are safetensors of the weights that the first request of a trainer begins with, and of input and target. The balance
counts the modules of models.py. Later requests that differ in the number of steps alone go on. It ends when its input does.
"""

import inspect
import json
import logging
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B, schedules

import blas
import models
import tensorfile

SCHEDULES = {'gpipe': ScheduleGPipe, '1f1b': Schedule1F1B, 'interleaved': ScheduleInterleaved1F1B}


KIND = os.environ.get('DEVICE', 'cpu')
DEVICE = torch.device('cpu' if KIND == 'cpu' else f"{KIND}:{os.environ['RANK']}")


def keep_works():
    """Returns the works that a step begins and PyTorch 2.6 forgets over Gloo.

    It waits for the last of those that it begins together and drops the others. Gloo loses a message whose work is dropped, and Schedule1F1B and
    ScheduleInterleaved1F1B then wait for ever.
    """
    kept = []
    if KIND != 'cpu' or not torch.__version__.startswith('2.6'):
        return kept

    def batch(ops, desc=None):
        works = dist.batch_isend_irecv(ops) if ops else [None]
        kept.extend(works[:-1])
        return works[-1]

    schedules._batch_p2p = batch
    return kept


class Trainer:
    works = keep_works()

    def __init__(self, request):
        rank, size = dist.get_rank(), dist.get_world_size()
        model, modules = models.build(request['model'], request['options'])
        models.load(model, tensorfile.read(request['weights']))
        balance, stages, owners, first = request['balance'], [], {}, 0
        for i, n in enumerate(balance):
            part = nn.Sequential(*modules[first:first + n])
            first += n
            for p in part.parameters():
                owners.setdefault(p, set()).add(i % size)
            if i % size == rank:
                stages.append(PipelineStage(part.to(DEVICE), i, len(balance), DEVICE))
        parameters = list({p: None for s in stages for p in s.submod.parameters()})
        self.shared = [p for p, ranks in owners.items() if len(ranks) > 1]  # every rank has its copy and sums the gradients
        self.optimizer = torch.optim.SGD(parameters, request['lr'])
        batch, chunks = {name: t.to(DEVICE) for name, t in tensorfile.read(request['batch']).items()}, request['chunks']
        self.input = (batch['input'],) if any(s.is_first for s in stages) else ()
        self.target = batch['target'] if any(s.is_last for s in stages) else None
        single, loss = len(balance) == size, models.loss(request['model'])
        # PyTorch 2.6 adds up the gradients of micro-batches. Later ones divide their sum, unless they are told not to.
        make = SCHEDULES[request['schedule']]
        sums = {'scale_grads': False} if 'scale_grads' in inspect.signature(make).parameters else {}
        self.schedule = make(stages[0] if single else stages, chunks, loss_fn=lambda y, t: loss(y, t) / chunks, **sums)

    def step(self):
        losses = []
        self.schedule.step(*self.input, target=self.target, losses=losses)
        for work in self.works:
            work.wait()
        self.works.clear()
        for p in self.shared:
            dist.all_reduce(p.grad)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return torch.stack(losses).detach().sum() if losses else None

    def run(self, steps):
        """The answer, on every rank."""
        begin, worked = time.perf_counter(), time.process_time()
        losses = [self.step() for _ in range(steps)]
        if KIND == 'cuda':
            torch.cuda.synchronize(DEVICE)
        cpu = torch.tensor(time.process_time() - worked, dtype=torch.float64, device=DEVICE)
        dist.all_reduce(cpu)  # and wait for each other
        cpu = float(cpu)
        ms = (time.perf_counter() - begin) * 1e3 / steps
        answer = [{'ms': ms, 'cpu_ms': cpu * 1e3 / steps, 'losses': [float(loss) for loss in losses] if self.target is not None else None}]
        dist.broadcast_object_list(answer, src=dist.get_world_size() - 1)
        return answer[0]


def told(request):
    """What rank 0 is asked, on every rank."""
    box = [request]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def main():
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    out, sys.stdout = sys.stdout, sys.stderr  # nothing but answers
    if KIND == 'cuda':
        torch.cuda.set_device(DEVICE)
    dist.init_process_group('nccl' if KIND == 'cuda' else 'gloo', timeout=timedelta(minutes=10))
    first = dist.get_rank() == 0

    def write(answer):
        if first:
            print(json.dumps(answer), file=out, flush=True)

    write({'torch': torch.__version__, 'blas': blas.core()})
    trainers, key = {}, None
    while request := told(json.loads(sys.stdin.readline() or 'null') if first else None):
        steps = request.pop('steps')
        if request['weights'] != key:  # of another workload
            key, trainers = request['weights'], {}
        name = json.dumps(request)
        try:
            if name not in trainers:
                trainers[name] = Trainer(request)
            write(trainers[name].run(steps))
        except Exception as e:  # the other process would wait for this one
            write({'error': f'{type(e).__name__}: {e}'})
            raise
    dist.barrier()
    os._exit(0)  # destroy_process_group sometimes waits for ever for what the other process has closed


if __name__ == '__main__':
    main()
