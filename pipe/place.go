package pipe

import (
	"errors"
	"fmt"

	"penstock/nn"
	"penstock/planner"
	"penstock/torch"
)

// New cuts a model's flattened layers over devices, materialises parameters that do not exist yet
// on the device of their stage and copies those that exist there. It starts the workers; Close ends
// them. On failure nothing is left running or allocated. A *planner.MemoryError says that
// parameters and buffers alone are more than a device may hold.
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

// Open is New without the parameters: nothing is allocated, so a model may be larger than its
// devices. Plan says what it will take, and Place makes the pipe ready for everything else, which
// is ErrNotPlaced before.
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
			return nil, fmt.Errorf("pipe: %q is shared by stages of another pipe, which has the model; Close that one first", s.Name)
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

// workersOfPlan says where a given plan has other workers than the pipe, which has one for each
// device, in the order of stages.
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

// Place brings parameters and buffers to their devices: those that do not exist are made and those
// that exist are copied. A *planner.MemoryError says that they are more than a device may hold;
// after any error those that were made are freed. Once placed, nothing is done.
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

// unplaceable lists the devices, by their first stage, that cannot hold the parameters and buffers
// of their stages.
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

// Unplaced is the bytes of a stage's parameters and buffers, and of its replicas of those that live
// on other devices, which do not exist yet.
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

// settle brings a stage's parameters to its device.
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
