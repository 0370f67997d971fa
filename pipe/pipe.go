package pipe

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"penstock/nn"
	"penstock/schedule"
	"penstock/torch"
)

// Stage is a part of the model on its device.
type Stage struct {
	Device torch.Device
	Layers []nn.NamedLayer

	worker    int
	inputGrad bool // there is something to train before this stage
}

// State lists the stage's parameters and buffers under their names in the model.
func (s *Stage) State() []nn.NamedParam {
	var out []nn.NamedParam
	seen := map[*nn.Param]bool{}
	for _, l := range s.Layers {
		for _, p := range l.State() {
			if !seen[p.Param] {
				seen[p.Param] = true
				out = append(out, p)
			}
		}
	}
	return out
}

// Params lists the stage's trainable parameters.
func (s *Stage) Params() []nn.NamedParam {
	var out []nn.NamedParam
	for _, p := range s.State() {
		if p.Trainable() {
			out = append(out, p)
		}
	}
	return out
}

// Pipe runs a model over stages. It is safe for concurrent use: runs take turns on the workers, in the order in which they were started. The model's
// parameters belong to the model; free them with nn.Free after Close.
type Pipe struct {
	cfg     Config
	model   *nn.Sequential
	stages  []*Stage
	workers []*worker

	record   atomic.Bool
	open     sync.WaitGroup // runs that were started
	stop     sync.Once
	submit   sync.Mutex // jobs of one run reach all workers before those of the next, or runs would wait for each other
	closed   bool
	programs map[programKey]*program // guarded by submit
}

// program is a graph with what running it asks for.
type program struct {
	*schedule.Graph
	awaited []bool // by id: another worker waits for the action
}

type programKey struct {
	microBatches int
	phase        schedule.Phase
	checkpoint   Checkpoint
}

// New cuts a model's flattened layers over devices, materialises parameters that do not exist yet on the device of their stage and copies those
// that exist there. It starts the workers; Close ends them. On failure nothing is left running or allocated.
func New(model *nn.Sequential, cfg Config) (*Pipe, error) {
	layers := model.Layers()
	cfg, err := cfg.resolved(layers)
	if err != nil {
		return nil, err
	}
	p := &Pipe{cfg: cfg, model: model, programs: map[programKey]*program{}}
	p.record.Store(cfg.Record)
	trained := false
	index := map[torch.Device]int{}
	for i, n := range cfg.Balance {
		d := cfg.Devices[i]
		if _, ok := index[d]; !ok {
			var cores []int
			if len(p.workers) < len(cfg.Cores) {
				cores = cfg.Cores[len(p.workers)]
			}
			w, err := newWorker(d, cfg.Threads, cores)
			if err != nil {
				return nil, errors.Join(err, p.Close())
			}
			index[d] = len(p.workers)
			p.workers = append(p.workers, w)
		}
		s := &Stage{Device: d, Layers: layers[:n], worker: index[d], inputGrad: trained}
		trained = trained || len(s.Params()) > 0
		p.stages = append(p.stages, s)
		layers = layers[n:]
	}
	var made []nn.NamedParam
	for _, s := range nn.State(model) {
		if !s.Exists() {
			made = append(made, s)
		}
	}
	if err := p.OnStages(context.Background(), p.settle); err != nil {
		for _, s := range made {
			s.Param.Free()
		}
		return nil, errors.Join(fmt.Errorf("pipe: placing the model: %w", err), p.Close())
	}
	return p, nil
}

// settle brings a stage's parameters to its device.
func (p *Pipe) settle(stage int, c *torch.Ctx) error {
	state := p.stages[stage].State()
	for _, s := range state {
		if s.Exists() {
			s.SetTensor(c.Keep(c.CopyHere(s.Tensor())))
		}
	}
	nn.Materialise(c, state, p.cfg.Seed)
	return nil
}

// Model is the model, whole.
func (p *Pipe) Model() *nn.Sequential { return p.model }

// Stages lists the stages. The caller must not change them.
func (p *Pipe) Stages() []*Stage { return p.stages }

// SetRecord switches the recording of timelines for runs that start from now on.
func (p *Pipe) SetRecord(on bool) { p.record.Store(on) }

// Config is the configuration with its defaults filled in.
func (p *Pipe) Config() Config { return p.cfg }

// Devices lists the distinct devices, in order of their first stage.
func (p *Pipe) Devices() []torch.Device {
	out := make([]torch.Device, len(p.workers))
	for i, w := range p.workers {
		out[i] = w.device
	}
	return out
}

// Close waits for the runs that were started, then ends the workers and waits for them. Closing again waits too; any other use after Close is ErrClosed.
func (p *Pipe) Close() error {
	p.submit.Lock()
	p.closed = true
	p.submit.Unlock()
	p.stop.Do(func() {
		p.open.Wait()
		for _, w := range p.workers {
			w.stop()
		}
	})
	return nil
}

// enter starts a run: until the caller's p.open.Done, Close waits for it and its jobs are taken.
func (p *Pipe) enter() error {
	p.submit.Lock()
	defer p.submit.Unlock()
	if p.closed {
		return ErrClosed
	}
	p.open.Add(1)
	return nil
}

// start gives every worker its job within a run that was entered; job is called with the worker's index on the worker's goroutine.
func (p *Pipe) start(job func(worker int, c *torch.Ctx)) {
	p.submit.Lock()
	defer p.submit.Unlock()
	for i, w := range p.workers {
		w.jobs <- func(c *torch.Ctx) { job(i, c) }
	}
}

// OnStages runs f once for each stage on the stage's worker: stages on different devices at the same time. c is on the stage's device, without gradients;
// what it owns is freed when f returns. OnStages returns when all have returned, with the first error. It is how optimizers step.
func (p *Pipe) OnStages(ctx context.Context, f func(stage int, c *torch.Ctx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := p.enter(); err != nil {
		return err
	}
	defer p.open.Done()
	errs := make([]error, len(p.stages))
	var all sync.WaitGroup
	all.Add(len(p.workers))
	p.start(func(worker int, c *torch.Ctx) {
		defer all.Done()
		for i, s := range p.stages {
			if s.worker == worker {
				errs[i] = ErrGoexit // overwritten unless f ends the goroutine
				errs[i] = onStage(i, c, f)
			}
		}
	})
	all.Wait()
	return errors.Join(errs...)
}

func onStage(stage int, c *torch.Ctx, f func(stage int, c *torch.Ctx) error) (err error) {
	defer c.Close()
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("pipe: stage %d: %w", stage, cause(r))
		}
	}()
	return f(stage, c)
}

// graph is the program for a number of micro-batches, made and checked once.
func (p *Pipe) graph(key programKey) (*program, error) {
	p.submit.Lock()
	defer p.submit.Unlock()
	if g, ok := p.programs[key]; ok {
		return g, nil
	}
	workers := make([]int, len(p.stages))
	for i, s := range p.stages {
		workers[i] = s.worker
	}
	planned, err := schedule.GPipe(schedule.Config{
		Stages: len(p.stages), MicroBatches: key.microBatches, Worker: workers, Phase: key.phase,
		Recompute: func(_, microBatch int) bool { return key.checkpoint.recompute(microBatch) },
	})
	if err == nil {
		err = schedule.Check(planned, schedule.Limits{})
	}
	if err != nil {
		return nil, fmt.Errorf("pipe: %w", err)
	}
	g := &program{Graph: planned.Graph()}
	g.awaited = make([]bool, len(g.Actions))
	for _, deps := range g.Cross {
		for _, id := range deps {
			g.awaited[id] = true
		}
	}
	p.programs[key] = g
	return g, nil
}
