package pipe

import (
	"fmt"
	"slices"

	"penstock.example/internal/segment"
	"penstock.example/nn"
	"penstock.example/torch"
)

// Stage is a part of the model on its device.
type Stage struct {
	// Device is the stage's device. A device of this process represents a device of another
	// process, for example for the batch's targets.
	Device torch.Device
	Layers []nn.NamedLayer
	Here   bool // the stage is in this process; others have neither parameters nor memory here

	first  int // index among the model's flattened layers
	worker int
	state  []nn.NamedParam // see State

	skips             []stageSkip
	leaving, entering int // number of skips that are stashed here, and received
	ties              []tie
	buffers, trained  []nn.NamedParam // that live here
}

// State lists the parameters and buffers that live on the stage, with their names in the model. A
// shared parameter lives on the first stage that uses it.
func (s *Stage) State() []nn.NamedParam { return slices.Clone(s.state) }

// Params lists the stage's trainable parameters.
func (s *Stage) Params() []nn.NamedParam {
	return slices.DeleteFunc(s.State(), func(p nn.NamedParam) bool { return !p.Trainable() })
}

// cut makes the stages. It refuses a buffer that several stages use: changes would reach other
// stages late, or never.
func (p *Pipe) cut() error {
	first := 0
	homes := map[*nn.Param]int{} // by owner: the first stage
	for i, n := range p.cfg.Balance {
		s := &Stage{Device: p.cfg.localDevice(i), Here: p.cfg.isHere(i), Layers: p.layers[first : first+n],
			first: first}
		for _, l := range s.Layers {
			for _, q := range l.State() {
				home, known := homes[q.Owner()]
				if !known {
					homes[q.Owner()] = i
					s.state = append(s.state, q)
				} else if home < i && q.IsBuffer() {
					return refuse("Balance", p.cfg.Balance,
						fmt.Sprintf("the buffer %q of stage %d is also used on stage %d", q.Name, i, home),
						"want both on one stage, or a buffer for each")
				}
			}
		}
		first += n
		p.stages = append(p.stages, s)
	}
	addSkipsAndTies(p.stages, p.routes)
	p.modes = nn.Modes(p.model)
	p.updateStages()
	return nil
}

// updateStages finds the trained parameters of the stages, and the first trained layer.
func (p *Pipe) updateStages() {
	p.firstTrained = segment.FirstTrained(p.layers)
	for _, s := range p.stages {
		s.trained = s.Params()
		s.buffers = slices.DeleteFunc(s.State(), func(q nn.NamedParam) bool { return !q.IsBuffer() })
	}
}

// updateModes updates the stages and forgets plans and measurements, if parts of the model were
// frozen, unfrozen or set to evaluation since the last run.
func (p *Pipe) updateModes() {
	p.modesMu.Lock()
	defer p.modesMu.Unlock()
	was := p.modes
	if p.modes = nn.Modes(p.model); slices.Equal(was, p.modes) {
		return
	}
	for _, s := range p.stages {
		for _, t := range s.ties {
			handle := t.handles[0]
			if replica := handle.Replica(); t.received() && replica != nil {
				replica.SetGradOf(nil)
				replica.SetRequiresGrad(handle.Trainable())
			}
		}
	}
	p.plans.forget()
	p.cfg.Profile = nil
	p.updateStages()
}

func (p *Pipe) last() *Stage { return p.stages[len(p.stages)-1] }
