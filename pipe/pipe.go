package pipe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"penstock/internal/arg"
	"penstock/nn"
	"penstock/torch"
)

// Pipe runs a model over stages. It is safe for concurrent use: runs take turns on the workers, in
// the order in which they were started. The model's parameters belong to the model; free them with
// nn.Free after Close.
//
// A layer, a loss and the function of OnStages run on a worker. They may call another pipe that
// does not wait for theirs. A call on their own pipe that needs the workers, such as Close, fails
// with ErrNested, also when it comes by way of other pipes. A call from a goroutine that they start
// and wait for is not recognised, and blocks for ever.
type Pipe struct {
	cfg     Config
	model   *nn.Sequential
	layers  []nn.NamedLayer // of the model when it was cut
	routes  []nn.SkipRoute
	tag     int64 // of the workers' threads
	stages  []*Stage
	workers []*worker

	record atomic.Bool
	open   sync.WaitGroup // runs that were started
	stop   sync.Once
	jobs   atomic.Int32 // number that have not ended
	// submit is held while a run gives its jobs to the workers. All workers get the jobs of one run
	// before those of the next, or runs would wait for each other.
	submit  sync.Mutex
	closed  bool // guarded by submit
	plans   plans
	unlimit []func()
	placed  atomic.Bool
	safe    safe
	hold    func(worker, action int) // in tests; see graphRun
}

// startWorkers starts a worker for each distinct device.
func (p *Pipe) startWorkers() error {
	index := map[torch.Device]int{}
	var devices []torch.Device
	for _, s := range p.stages {
		if _, ok := index[s.Device]; !ok {
			index[s.Device] = len(devices)
			devices = append(devices, s.Device)
		}
		s.worker = index[s.Device]
	}
	for i, d := range devices {
		var cores []int
		if i < len(p.cfg.Cores) {
			cores = p.cfg.Cores[i]
		}
		w, err := newWorker(d, p.cfg.Threads, cores, p.tag)
		if err != nil && cores != nil {
			return &ConfigError{Of: "pipe", Field: "Cores", Value: p.cfg.Cores,
				Problem: fmt.Sprintf("the worker of %v: %v", d, err), Remedy: "want cores that the process may run on, or nil"}
		}
		if err != nil {
			return fmt.Errorf("pipe: the worker of %v: %w", d, err)
		}
		p.workers = append(p.workers, w)
	}
	return nil
}

// Stages lists the stages. The caller must not change them.
func (p *Pipe) Stages() []*Stage { return p.stages }

// SetRecord switches the recording of timelines for runs that start from now on.
func (p *Pipe) SetRecord(on bool) { p.record.Store(on) }

// Config is the configuration with its defaults filled in.
func (p *Pipe) Config() Config { return p.cfg.copied() }

// Devices lists the distinct devices, in the order of their first stage. Where stages share
// devices, the last device need not be that of the last stage; see Stages.
func (p *Pipe) Devices() []torch.Device {
	var out []torch.Device
	for _, s := range p.stages {
		if s.worker == len(out) {
			out = append(out, s.Device)
		}
	}
	return out
}

// Close waits for the runs that were started, ends the workers and waits for them. A second Close
// waits too. Any other use after Close fails with ErrClosed. On a worker of the pipe Close fails
// with ErrNested, and the pipe stays open.
func (p *Pipe) Close() error {
	leave, err := p.outside("Close")
	if err != nil {
		return err
	}
	defer leave()
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
		for _, undo := range p.unlimit {
			undo()
		}
	})
	return nil
}

// start gives every worker its job, within a run that was entered. A job runs on the goroutine of
// the worker, with its index.
func (p *Pipe) start(job func(worker int, c *torch.Ctx)) {
	p.submit.Lock()
	defer p.submit.Unlock()
	for i, w := range p.workers {
		p.jobs.Add(1)
		w.jobs <- func(c *torch.Ctx) {
			defer p.jobs.Add(-1)
			job(i, c)
		}
	}
}

// busy says whether a worker has a job. If none has, the accounts of the devices show what they
// hold between runs. A run that starts meanwhile can only add to them.
func (p *Pipe) busy() bool { return p.jobs.Load() > 0 }

// OnStages runs f once for each stage on the stage's worker. Stages on different devices run at the
// same time. c is on the stage's device and without gradients; what it owns is freed when f
// returns. OnStages returns when all have returned, with their errors joined. To step an optimizer
// use Update.
func (p *Pipe) OnStages(ctx context.Context, f func(stage int, c *torch.Ctx) error) error {
	err := cmp.Or(arg.Context(ctx, "pipe"), arg.Given(f, "pipe: OnStages: the function", "what is to run for each stage"))
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
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

// onStages is OnStages within a run that was entered. The model need not be placed.
func (p *Pipe) onStages(f func(stage int, c *torch.Ctx) error) error {
	errs := make([]error, len(p.stages))
	var all sync.WaitGroup
	all.Add(len(p.workers))
	p.start(func(worker int, c *torch.Ctx) {
		defer all.Done()
		defer p.count(worker)()
		for i, s := range p.stages {
			if s.worker == worker {
				// overwritten unless f ends the goroutine
				errs[i] = fmt.Errorf("pipe: stage %d: %w", i, ErrGoexit)
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
