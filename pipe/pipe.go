package pipe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"penstock.example/internal/engine"
	"penstock.example/internal/link"
	"penstock.example/nn"
	"penstock.example/plan"
	"penstock.example/torch"
)

// Pipe runs a model over stages. It is safe for concurrent use: runs take turns on the workers. The
// model owns its parameters; free them with nn.Free after Close.
//
// A layer, a loss and the function of OnStages run on a worker. They may call another pipe. A call
// on their own pipe that needs the workers fails with ErrNested. The same call by way of another
// goroutine or another pipe is not noticed, and blocks for ever.
//
// Parts of the model may be frozen, unfrozen or set to evaluation (nn.Freeze, nn.Eval) between
// runs. The next run plans anew.
//
// With Config.Group the stages are in several processes. Each process has a Pipe for the same model
// and configuration, and makes the same calls with the same arguments. It has the parameters and
// the results of its own stages. A step that fails in one process fails the group.
type Pipe struct {
	cfg          Config
	model        *nn.Sequential
	layers       []nn.NamedLayer // of the model when it was cut
	firstTrained int             // the first trained layer, or the number of layers
	routes       []nn.SkipRoute
	tag          int64 // of the workers' threads
	stages       []*Stage
	workers      []*worker      // nil for a device of another process
	mine         []int          // the workers of this process
	remote       *link.Remote   // between the processes of the replica
	replicaLinks []*link.Remote // by stage: between the replicas; nil for one replica
	direct       *link.Direct   // to GPUs of other processes; nil if NCCL reaches none
	gpus         gpus
	replica      int // of this process

	record        atomic.Bool
	calls         sync.WaitGroup // calls that were entered
	jobs          atomic.Int32   // number of jobs that have not ended
	closeOnce     sync.Once
	submit        sync.Mutex // held while a run gives its jobs to all workers
	closed        bool       // guarded by submit
	steps         int64      // number of the next step; guarded by submit
	plans         plans
	modesMu       sync.Mutex
	modes         []bool   // at the last run
	restoreLimits []func() // of devices
	placed        atomic.Bool
	unsummed      atomic.Bool // each replica has its own gradients
	memory        deviceMemory
	hold          func(worker, action int)           // delays workers in tests
	newLink       func(failed func() bool) link.Link // between the stages of this process, for a mini-batch
	copies        copyStreams
	statePool     sync.Pool // empty [][]microBatch, by stage and micro-batch
}

// membersDevices maps a device to the rank of the member that uses it. Members in one process need
// different devices, as a device has one memory account.
var membersDevices sync.Map

func (p *Pipe) startWorkers() error {
	of, devices := p.cfg.workers()
	for i, s := range p.stages {
		s.worker = of[i]
	}
	p.workers = make([]*worker, len(devices))
	for i, d := range devices {
		if !slices.ContainsFunc(p.stages, func(s *Stage) bool { return s.worker == i && s.Here }) {
			continue
		}
		if g := p.cfg.Group; g != nil {
			if rank, used := membersDevices.LoadOrStore(d, g.Rank()); used && rank != g.Rank() {
				return refuse("Devices", d, fmt.Sprintf("rank %d in this process uses it", rank),
					"want devices of its own for each member of a group")
			}
		}
		var cores []int
		if i < len(p.cfg.Cores) {
			cores = p.cfg.Cores[i]
		}
		w, err := newWorker(d, p.cfg.Threads, cores, p.tag)
		if err != nil {
			return fmt.Errorf("pipe: the worker of %v (Cores %v): %w", d, cores, err)
		}
		p.workers[i], p.mine = w, append(p.mine, i)
	}
	return nil
}

// Stages lists the stages. The caller must not change them.
func (p *Pipe) Stages() []*Stage { return p.stages }

// SetRecord sets whether runs that start from now on record timelines.
func (p *Pipe) SetRecord(on bool) { p.record.Store(on) }

// Config is the configuration with defaults filled in. The caller must not change its lists.
func (p *Pipe) Config() Config { return p.cfg }

// Devices lists the distinct devices of all processes, in the order of their first stage.
func (p *Pipe) Devices() []torch.Device {
	_, devices := p.cfg.workers()
	return devices
}

// DeviceHere reports whether a device of Devices, by index, is of this process.
func (p *Pipe) DeviceHere(device int) bool { return slices.Contains(p.mine, device) }

// Close waits for started runs, and ends the workers. Other calls then fail with ErrClosed.
func (p *Pipe) Close() error {
	if err := p.refuseNested("Close"); err != nil {
		return err
	}
	p.submit.Lock()
	p.closed = true
	p.submit.Unlock()
	p.closeOnce.Do(func() {
		p.calls.Wait()
		if p.direct != nil {
			p.direct.Close()
		}
		for _, w := range p.mine {
			p.workers[w].stop()
			membersDevices.Delete(p.workers[w].device)
		}
		for _, c := range p.copies.of {
			engine.CloseStream(c)
		}
		for _, s := range p.stages {
			s.forget()
		}
		for _, undo := range p.restoreLimits {
			undo()
		}
	})
	return nil
}

// start gives every worker of this process a job. The caller has called enter and holds submit.
// wait waits for all jobs.
func (p *Pipe) start(job func(worker int, c *torch.Ctx)) (wait func()) {
	var all sync.WaitGroup
	all.Add(len(p.mine))
	for _, i := range p.mine {
		p.jobs.Add(1)
		p.workers[i].jobs <- func(c *torch.Ctx) {
			defer all.Done()
			defer p.jobs.Add(-1)
			p.workers[i].awaitCaller()
			job(i, c)
		}
	}
	return all.Wait
}

// do runs f on every worker of this process. submit must be held. wait waits for f and its queued
// work. errs is by worker.
func (p *Pipe) do(f func(worker int, c *torch.Ctx) error) (wait func() (errs []error)) {
	errs := make([]error, len(p.workers))
	all := p.start(func(worker int, c *torch.Ctx) {
		w := p.workers[worker]
		defer func() { _ = torch.Try(w.drain) }() // after a failure the next operator fails as well
		engine.OwnPeak(w.device)                  // begins the peak of f
		defer func() { p.memory.raise(worker, engine.OwnPeak(w.device)) }()
		errs[worker] = recovered(c, func() error { return f(worker, c) })
	})
	return func() []error { all(); return errs }
}

// onWorkers runs f on every worker of this process and waits, after enter.
func (p *Pipe) onWorkers(f func(worker int, c *torch.Ctx) error) []error {
	p.submit.Lock()
	wait := p.do(f)
	p.submit.Unlock()
	return wait()
}

// OnStages runs f for each stage of this process on its worker, and joins the errors. c makes no
// graph, and its tensors are freed when f returns. To step an optimizer use Update.
func (p *Pipe) OnStages(ctx context.Context, f func(stage int, c *torch.Ctx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !p.placed.Load() {
		return ErrNotPlaced
	}
	leave, err := p.enter("OnStages")
	if err != nil {
		return err
	}
	defer leave()
	return p.onStages(f)
}

// onStages is OnStages after enter.
func (p *Pipe) onStages(f func(stage int, c *torch.Ctx) error) error {
	return errors.Join(p.onWorkers(func(worker int, c *torch.Ctx) error {
		var errs []error
		for i, s := range p.stages {
			if s.worker != worker || !s.Here {
				continue
			}
			if err := recovered(c, func() error { return f(i, c) }); err != nil {
				errs = append(errs, fmt.Errorf("pipe: stage %d: %w", i, err))
			}
		}
		return errors.Join(errs...)
	})...)
}

func recovered(c *torch.Ctx, f func() error) (err error) {
	defer c.Close()
	defer func() {
		if r := recover(); r != nil {
			err = torch.Caught(r)
		}
	}()
	return f()
}

// New is Open and Place. On failure nothing runs or stays allocated.
func New(model *nn.Sequential, cfg Config) (*Pipe, error) {
	p, err := Open(model, cfg)
	if err != nil {
		return nil, err
	}
	if err := p.Place(); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Open cuts the flattened layers of a model over devices and starts the workers, which Close ends.
// Nothing is allocated, so a model may be larger than its devices. PlanFor predicts the memory.
// Until Place other calls fail with ErrNotPlaced.
func Open(model *nn.Sequential, cfg Config) (*Pipe, error) {
	layers := model.Layers()
	cfg, err := cfg.resolved(layers)
	if err != nil {
		return nil, err
	}
	p := &Pipe{cfg: cfg, model: model, layers: layers, tag: tags.Add(1), gpus: nccl,
		memory:  deviceMemory{at: map[int]deviceBytes{}},
		newLink: func(func() bool) link.Link { return &link.Memory{} }, hold: func(int, int) {}}
	p.record.Store(cfg.Record)
	p.plans.forget()
	if p.routes, err = model.SkipRoutes(); err != nil {
		return nil, fmt.Errorf("pipe: %w", err)
	}
	err = p.cut()
	if err == nil && len(cfg.Balance) > 1 { // a layer may open a pipe of one stage within another pipe
		err = p.checkOwner()
	}
	if err != nil {
		return nil, err
	}
	p.connectProcesses()
	if err := p.startWorkers(); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	for i, s := range p.stages {
		if cfg.policies[i] == Optimal && s.Here && cfg.Budget[i] > 0 {
			p.restoreLimits = append(p.restoreLimits, engine.Restrict(s.Device, cfg.Budget[i]))
		}
	}
	return p, nil
}

// Place makes missing parameters and buffers on the devices of their stages, and copies the others
// there. It frees the parameters of other processes. It fails with a *plan.MemoryError if they do
// not fit, and then frees the new ones. A second Place does nothing.
func (p *Pipe) Place() error {
	leave, err := p.enter("Place")
	if err != nil {
		return err
	}
	defer leave()
	if p.placed.Load() {
		return nil
	}
	if err := p.checkOwner(); err != nil {
		return err
	}
	var shortage error
	if short := p.unplaceable(); short != nil {
		shortage = memoryError{&plan.MemoryError{Stages: short}}
	}
	gpus, err := meet(context.Background(), p, "the memory for parameters", p.gpuIDs(), shortage)
	if err != nil {
		return err
	}
	var made []nn.NamedParam
	for _, stage := range p.stages {
		for _, s := range stage.State() {
			if !stage.Here {
				s.Param.Free()
			} else if !s.Exists() {
				made = append(made, s)
			}
		}
	}
	if err = p.onStages(p.placeStage); err == nil {
		err = p.onStages(p.replicate)
	}
	if _, err = meet(context.Background(), p, "the parameters", 0, err); err == nil {
		err = p.connect(gpus)
	}
	if err != nil {
		for _, s := range made {
			s.Param.Free()
		}
		return fmt.Errorf("pipe: placing the model: %w", err)
	}
	p.placed.Store(true)
	return nil
}

// unplaceable lists the devices of this process, by first stage, on which parameters do not fit.
func (p *Pipe) unplaceable() (short []plan.Shortage) {
	for _, i := range p.mine {
		first, unplaced, m := -1, int64(0), p.workers[i].device.Memory()
		for at, s := range slices.Backward(p.stages) {
			if s.worker == i {
				first, unplaced = at, unplaced+p.Unplaced(at)
			}
		}
		if least := m.Live + unplaced; m.Limit > 0 && unplaced > 0 && least > m.Limit {
			short = append(short, plan.Shortage{Stage: first, Device: p.workers[i].device.String(),
				Limit: m.Limit, Least: least, SetBy: "parameters and buffers alone"})
		}
	}
	return short
}

// Unplaced is the bytes that Place will allocate for a stage: parameters and buffers, and replicas
// of parameters that live on other devices. It is 0 for a stage of another process.
func (p *Pipe) Unplaced(stage int) (bytes int64) {
	s := p.stages[stage]
	if !s.Here {
		return 0
	}
	for _, q := range s.State() {
		if !q.Exists() {
			bytes += q.Bytes()
		}
	}
	for _, t := range s.ties {
		if !t.received() || t.handles[0].Replica() != nil {
			continue
		}
		if home, _ := p.home(t); home.worker != s.worker {
			bytes += t.handles[0].Bytes()
		}
	}
	return bytes
}

func (p *Pipe) placeStage(stage int, c *torch.Ctx) error {
	state := p.stages[stage].State()
	for _, s := range state {
		if s.Exists() {
			here := c.CopyHere(s.Tensor())
			c.Synchronize() // SetTensor frees memory of another stream
			s.SetTensor(c.Keep(here))
		}
	}
	nn.Materialise(c, state, p.cfg.Seed)
	return nil
}

func (p *Pipe) Model() *nn.Sequential { return p.model }

func (p *Pipe) optimal() bool { return slices.Contains(p.cfg.policies, Optimal) }

// memoryError is a *plan.MemoryError for errors.As, and torch.ErrOutOfMemory for errors.Is.
type memoryError struct{ *plan.MemoryError }

func (e memoryError) Unwrap() error { return e.MemoryError }

func (e memoryError) Is(target error) bool { return target == torch.ErrOutOfMemory }
