package pipe

import (
	"errors"
	"fmt"

	"penstock/nn"
	"penstock/planner"
	"penstock/torch"
)

// New cuts the flattened layers of a model over devices, places the parameters and starts the
// workers. A parameter that does not exist is made on the device of its stage; one that exists is
// copied there. Close ends the workers. On failure nothing runs or stays allocated. A
// *planner.MemoryError says that parameters and buffers alone do not fit on a device.
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

// Open is New without the parameters. Nothing is allocated, so a model may be larger than its
// devices. PlanFor says what it will take. Place makes the pipe ready; before it, all other use
// fails with ErrNotPlaced.
func Open(model *nn.Sequential, cfg Config) (*Pipe, error) {
	if model == nil {
		return nil, errors.New("pipe: the model is nil; want an nn.Sequential")
	}
	layers := model.Layers()
	cfg, err := cfg.resolved(layers)
	if err != nil {
		return nil, err
	}
	p := &Pipe{cfg: cfg, model: model, layers: layers, tag: tags.Add(1)}
	for _, s := range nn.Shared(model) {
		if s.Replica() != nil {
			return nil, fmt.Errorf("pipe: %q is shared by stages of another pipe, which has the model; Close that one "+
				"first", s.Name)
		}
	}
	if p.routes, err = model.SkipRoutes(); err != nil {
		return nil, fmt.Errorf("pipe: %w", err)
	}
	p.record.Store(cfg.Record)
	if err := p.cut(layers); err != nil {
		return nil, err
	}
	if err := p.startWorkers(); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	if err := p.workersOfPlan(); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	p.limit()
	return p, nil
}

// workersOfPlan refuses a given plan whose workers are not the pipe's: one for each device, in the
// order of stages.
func (p *Pipe) workersOfPlan() error {
	if p.cfg.Plan == nil {
		return nil
	}
	for w, actions := range p.cfg.Plan.Program.Workers {
		for _, a := range actions {
			if have := p.stages[a.Stage].worker; have != w {
				return p.cfg.refusePlan(fmt.Sprintf("its worker %d does %v, and stage %d on %v has worker %d", w, a,
					a.Stage, p.stages[a.Stage].Device, have), "want one worker for each device, numbered in the order of stages")
			}
		}
	}
	return nil
}

// Place makes parameters and buffers that do not exist, on the devices of their stages, and copies
// there those that exist. It fails with a *planner.MemoryError if they do not fit. After a failure
// those that were made are freed. On a pipe that is placed it does nothing.
func (p *Pipe) Place() error {
	leave, err := p.enter("Place")
	if err != nil {
		return err
	}
	defer leave()
	if p.placed.Load() {
		return nil
	}
	if short := p.unplaceable(); short != nil {
		return memoryError{&planner.MemoryError{Stages: short}}
	}
	var made []nn.NamedParam
	for _, s := range nn.State(p.model) {
		if !s.Exists() {
			made = append(made, s)
		}
	}
	err = p.onStages(p.placeStage)
	if err == nil {
		err = p.onStages(p.replicate)
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

// unplaceable lists the devices that cannot hold the parameters and buffers of their stages, each
// by its first stage.
func (p *Pipe) unplaceable() (short []planner.Shortage) {
	for i, d := range p.Devices() {
		first, unplaced := -1, int64(0)
		for at, s := range p.stages {
			if s.worker == i {
				unplaced += p.Unplaced(at)
				if first < 0 {
					first = at
				}
			}
		}
		if m := d.Memory(); m.Limit > 0 && unplaced > 0 && m.Live+unplaced > m.Limit {
			short = append(short, planner.Shortage{Stage: first, Device: d.String(), Limit: m.Limit,
				Least: m.Live + unplaced, SetBy: "parameters and buffers alone"})
		}
	}
	return short
}

// Unplaced is the bytes that a stage still has to allocate for its parameters and buffers, and for
// its replicas of parameters that live on other devices.
func (p *Pipe) Unplaced(stage int) (bytes int64) {
	s := p.stages[stage]
	for _, q := range s.State() {
		if !q.Exists() {
			bytes += sizeOf(q.Param)
		}
	}
	for _, t := range s.ties {
		if t.from.stage < 0 || t.handles[0].Replica() != nil {
			continue
		}
		if home, _ := p.home(t); home.Device != s.Device {
			bytes += sizeOf(t.handles[0])
		}
	}
	return bytes
}

func sizeOf(p *nn.Param) int64 { return p.Numel() * p.DType().Size() }

// placeStage makes or copies a stage's parameters and buffers on its device.
func (p *Pipe) placeStage(stage int, c *torch.Ctx) error {
	state := p.stages[stage].State()
	for _, s := range state {
		if s.Exists() {
			s.SetTensor(c.Keep(c.CopyHere(s.Tensor())))
		}
	}
	nn.Materialise(c, state, p.cfg.Seed)
	return nil
}
