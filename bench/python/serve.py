"""The protocol between the benchmark and a process of an opponent.

The process writes one line about itself. Then it reads requests, one JSON object a line, and
answers each with one line. An answer {"error": "..."} reports a failure. It ends with its input.
"""

import contextlib
import json
import os
import sys
import tempfile
import time

import torch

import blas


class Server:
    def __init__(self):
        self.out, sys.stdout = sys.stdout, sys.stderr  # libraries must not print into answers

    def write(self, answer):
        print(json.dumps(answer), file=self.out, flush=True)

    def hello(self):
        self.write({'torch': torch.__version__, 'blas': blas.core()})

    def serve(self, answer):
        self.hello()
        for line in sys.stdin:
            try:
                self.write(answer(json.loads(line)))
            except Exception as e:  # the benchmark shows it
                self.write({'error': error(e)})


def steps(make):
    """Answers requests for steps. make(request) returns a trainer with step, threads and more.

    A request that differs from the last in more than its seconds makes a new trainer.
    """
    key, trainer = None, None

    def answer(request):
        nonlocal key, trainer
        seconds = request.pop('seconds')
        if request != key:
            key, trainer = None, make(request)
            key = request
        return {'ms': timed(trainer.step, seconds), 'threads': trainer.threads, **trainer.more}

    return answer


def error(e):
    """The type and the last line of an exception."""
    lines = str(e).strip().splitlines() or ['']
    return f'{type(e).__name__}: {lines[-1]}'


def set_threads(n):
    torch.set_num_threads(n)
    blas.set_threads(n)
    # torch.compile makes kernels for a number of threads, which its cache does not tell apart.
    name = f'penstock-inductor-{torch.__version__}-{n}-{os.getuid()}'
    os.environ['TORCHINDUCTOR_CACHE_DIR'] = os.path.join(tempfile.gettempdir(), name)


def thread_counts():
    """1, half of the cores that this process may use, and all."""
    cores = len(os.sched_getaffinity(0))
    return sorted({1, max(cores // 2, 1), cores})


def tuned(make, seconds):
    """Tries numbers of threads. Returns the fastest step, and its threads.

    make(threads) returns a step.
    """
    found = []
    for n in thread_counts():
        set_threads(n)
        step = make(n)
        step()
        found.append((min(timed(step, seconds)), n, step))
    _, n, step = min(found, key=lambda x: x[0])
    set_threads(n)
    return step, n


def timed(step, seconds):
    """The milliseconds of each step that fits into the time, and of one at least."""
    ms, begin = [], time.perf_counter()
    while not ms or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        step()
        ms.append((time.perf_counter() - start) * 1e3)
    return ms


def set_up(spec):
    """The device of a request, and autocast of its forwards. Sets what the process computes with."""
    device, precision = torch.device(spec['device']), spec['precision']
    if device.type == 'cuda':
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != ''
        torch.use_deterministic_algorithms(spec['deterministic'], warn_only=True)
    return device, lambda: torch.autocast(device.type, torch.bfloat16, enabled=precision == 'bfloat16')


def made_on(device):
    """A context in which tensors are made on the device. PyTorch before 2.0 has none, and CPUs alone."""
    return device if hasattr(device, '__enter__') else contextlib.nullcontext()


def wait(device):
    """Waits until the work of a GPU is done."""
    if device.type == 'cuda':
        torch.cuda.synchronize(device)


def product_rate(device, precision):
    """The floating-point operations a second of a large product."""
    n, count = (8192, 20) if device.type == 'cuda' else (512, 2)
    x = torch.randn(n, n, device=device, dtype=torch.bfloat16 if precision == 'bfloat16' else torch.float32)

    def products():
        for _ in range(count):
            x @ x
        wait(device)

    products()
    return 2e3 * count * n ** 3 / timed(products, 0)[0]


def batch(spec, device='cpu'):
    """A random input and target. The input holds whole numbers below tokens, or floats."""
    shape, tokens = spec['input'], spec['tokens']
    x = torch.randint(tokens, shape) if tokens else torch.randn(shape)
    return x.to(device), torch.randn(spec['target']).to(device)


def check(spec, parameters):
    """Fails unless the network has as many parameters as Penstock's."""
    if parameters != spec['parameters']:
        raise ValueError(f"{parameters} parameters; Penstock has {spec['parameters']}")
