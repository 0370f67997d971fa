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

	first     int // of the model's flattened layers
	worker    int
	inputGrad bool               // there is something to train before this stage
	elsewhere map[*nn.Param]bool // used here, and living on an earlier stage

	ports []port
	ties  []tie
}

// State lists the parameters and buffers that live on the stage, under their names in the model. One that several stages use lives on the first of them.
func (s *Stage) State() []nn.NamedParam {
	var out []nn.NamedParam
	seen := map[*nn.Param]bool{}
	for _, l := range s.Layers {
		for _, p := range l.State() {
			if owner := p.Owner(); !seen[owner] && !s.elsewhere[owner] {
				seen[owner] = true
				out = append(out, p)
			}
		}
	}
	return out
}

// trains says whether anything on the stage has a gradient.
func (s *Stage) trains() bool {
	for _, l := range s.Layers {
		if len(nn.Params(l.Layer)) > 0 {
			return true
		}
	}
	return false
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
	routes  []nn.SkipRoute
	stages  []*Stage
	workers []*worker // with CopyWorkers, those that compute and then those that copy

	record   atomic.Bool
	open     sync.WaitGroup // runs that were started
	stop     sync.Once
	submit   sync.Mutex // jobs of one run reach all workers before those of the next, or runs would wait for each other
	closed   bool
	programs map[programKey]*program // guarded by submit
}

// program is a graph with what running it asks for.
type program struct {
	planned *schedule.Program
	*schedule.Graph
	awaited []bool // by id: another worker waits for the action
}

type programKey struct {
	microBatches int
	phase        schedule.Phase
	training     bool
}

// New cuts a model's flattened layers over devices, materialises parameters that do not exist yet on the device of their stage and copies those
// that exist there. It starts the workers; Close ends them. On failure nothing is left running or allocated.
func New(model *nn.Sequential, cfg Config) (*Pipe, error) {
	if model == nil {
		return nil, errors.New("pipe: the model is nil; want an nn.Sequential")
	}
	layers := model.Layers()
	cfg, err := cfg.resolved(layers)
	if err != nil {
		return nil, err
	}
	p := &Pipe{cfg: cfg, model: model, programs: map[programKey]*program{}}
	for _, s := range nn.Shared(model) {
		if s.Replica() != nil {
			return nil, fmt.Errorf("pipe: %q is shared by stages of another pipe, which has the model; Close that one first", s.Name)
		}
	}
	if p.routes, err = model.SkipRoutes(); err != nil {
		return nil, fmt.Errorf("pipe: %w", err)
	}
	p.record.Store(cfg.Record)
	p.cut(layers)
	if err := p.hire(); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	var made []nn.NamedParam
	for _, s := range nn.State(model) {
		if !s.Exists() {
			made = append(made, s)
		}
	}
	err = p.OnStages(context.Background(), p.settle)
	if err == nil {
		err = p.OnStages(context.Background(), p.replicate)
	}
	if err != nil {
		err = errors.Join(fmt.Errorf("pipe: placing the model: %w", err), p.Close())
		for _, s := range made {
			s.Param.Free()
		}
		return nil, err
	}
	return p, nil
}

// cut makes the stages.
func (p *Pipe) cut(layers []nn.NamedLayer) {
	trained, first := false, 0
	seen := map[*nn.Param]bool{}
	for i, n := range p.cfg.Balance {
		s := &Stage{Device: p.cfg.Devices[i], Layers: layers[first : first+n], first: first, inputGrad: trained, elsewhere: map[*nn.Param]bool{}}
		for _, l := range s.Layers {
			for _, q := range l.State() {
				s.elsewhere[q.Owner()] = seen[q.Owner()]
			}
		}
		for owner := range s.elsewhere {
			seen[owner] = true
		}
		trained = trained || s.trains()
		first += n
		p.stages = append(p.stages, s)
	}
	connect(p.stages, p.routes, p.cfg.RelaySkips)
}

// hire starts a worker for each distinct device, and with CopyWorkers another.
func (p *Pipe) hire() error {
	index := map[torch.Device]int{}
	var devices []torch.Device
	for _, s := range p.stages {
		if _, ok := index[s.Device]; !ok {
			index[s.Device] = len(devices)
			devices = append(devices, s.Device)
		}
		s.worker = index[s.Device]
	}
	count := len(devices)
	if p.cfg.CopyWorkers {
		devices = append(devices, devices...)
	}
	for i, d := range devices {
		var cores []int
		if i%count < len(p.cfg.Cores) {
			cores = p.cfg.Cores[i%count]
		}
		w, err := newWorker(d, p.cfg.Threads, cores)
		if err != nil {
			return fmt.Errorf("pipe: the worker of %v: %w", d, err)
		}
		p.workers = append(p.workers, w)
	}
	return nil
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

// Len is the number of the model's flattened layers, which Config.Balance counts.
func (p *Pipe) Len() int { return len(p.model.Layers()) }

// Layers lists the flattened layers in order, over all stages, with their names in the model.
func (p *Pipe) Layers() []nn.NamedLayer { return p.model.Layers() }

// Layer is a flattened layer by its index, from 0; negative ones count from the end.
func (p *Pipe) Layer(i int) (nn.NamedLayer, error) {
	layers := p.model.Layers()
	if i < -len(layers) || i >= len(layers) {
		return nn.NamedLayer{}, fmt.Errorf("pipe: there is no layer %d among %d; want %d to %d", i, len(layers), -len(layers), len(layers)-1)
	}
	return layers[(i+len(layers))%len(layers)], nil
}

// Convert gives every floating-point parameter and buffer another element type, each on its stage's device. Gradients are dropped. Call it while no run is going on.
func (p *Pipe) Convert(ctx context.Context, dtype torch.DType) error {
	if !dtype.IsFloat() {
		return fmt.Errorf("pipe: a model cannot be converted to %v; want a floating-point type", dtype)
	}
	err := p.OnStages(ctx, func(stage int, c *torch.Ctx) error {
		nn.Convert(c, p.stages[stage].State(), dtype)
		return nil
	})
	// Also when that failed, or ctx has ended by now: replicas are to be like their parameters, which are converted or not.
	if replicas := p.OnStages(context.WithoutCancel(ctx), p.replicate); err == nil {
		err = replicas
	}
	return err
}

// Stages lists the stages. The caller must not change them.
func (p *Pipe) Stages() []*Stage { return p.stages }

// Program is what the workers do in a Step of so many micro-batches: what schedule.Simulate predicts, and what a recorded timeline is of. Its workers are in the order of Devices; with
// CopyWorkers those that copy follow. The caller must not change it. It returns an error if there are no such programs, as for less than one micro-batch.
func (p *Pipe) Program(microBatches int) (*schedule.Program, error) {
	g, err := p.graph(programKey{microBatches, schedule.Whole, true})
	if err != nil {
		return nil, err
	}
	return g.planned, nil
}

// SetRecord switches the recording of timelines for runs that start from now on.
func (p *Pipe) SetRecord(on bool) { p.record.Store(on) }

// Config is the configuration with its defaults filled in.
func (p *Pipe) Config() Config { return p.cfg }

// Devices lists the distinct devices, in order of their first stage. Where stages share one, the last need not be the last stage's: that is in Stages.
func (p *Pipe) Devices() []torch.Device {
	var out []torch.Device
	for _, s := range p.stages {
		if s.worker == len(out) {
			out = append(out, s.Device)
		}
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
		for _, s := range p.stages {
			s.forget()
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
				errs[i] = fmt.Errorf("pipe: stage %d: %w", i, ErrGoexit) // overwritten unless f ends the goroutine
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
		Recompute: func(stage, microBatch int) bool {
			return key.training && p.cfg.Checkpoints[stage].recompute(microBatch)
		},
		Skips:         edges(p.stages),
		LateRecompute: p.cfg.LateRecompute,
		CopyWorkers:   p.cfg.CopyWorkers,
	})
	if err == nil {
		err = schedule.Check(planned, schedule.Limits{})
	}
	if err != nil {
		return nil, fmt.Errorf("pipe: %w", err)
	}
	g := &program{planned: planned, Graph: planned.Graph()}
	g.awaited = make([]bool, len(g.Actions))
	for _, deps := range g.Cross {
		for _, id := range deps {
			g.awaited[id] = true
		}
	}
	p.programs[key] = g
	return g, nil
}
