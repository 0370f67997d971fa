package pipe

import (
	"errors"

	"penstock/nn"
	"penstock/torch"
)

// tie is a parameter that several stages use, on one of them. The parameter lives on the first of
// the stages; the others have a replica.
type tie struct {
	handles []*nn.Param // of the stage's layers, in the order of the model
	// from and to are the ties on the stages that use it before and after; stage -1 where there is
	// none.
	from, to location
}

// tensor is the parameter on the tie's stage: the value, or the replica.
func (t tie) tensor() *torch.Tensor { return t.handles[0].Tensor() }

// home is the first tie of a parameter, and its stage, on which the parameter lives.
func (p *Pipe) home(t tie) (*Stage, tie) {
	at := t.from
	for stage := p.stages[at.stage]; ; stage = p.stages[at.stage] {
		if t = stage.ties[at.index]; t.from.stage < 0 {
			return stage, t
		}
		at = t.from
	}
}

// undivided refuses a run where another pipe, made after this one, has put replicas on the layers
// of the stage where the parameter lives. The gradients would go to the replicas and be lost.
func (p *Pipe) undivided() error {
	for _, s := range p.stages {
		for _, t := range s.ties {
			for _, h := range t.handles {
				if t.from.stage < 0 && h.Replica() != nil {
					return errors.New("pipe: another pipe has the model and has put a parameter that layers share on " +
						"several stages; Close that one first")
				}
			}
		}
	}
	return nil
}

// replicate gives the stage's handles on parameters of other stages a replica.
func (p *Pipe) replicate(stage int, c *torch.Ctx) error {
	s := p.stages[stage]
	for _, t := range s.ties {
		if t.from.stage < 0 {
			continue
		}
		home, owner := p.home(t)
		value := owner.tensor()
		replica := c.Detach(value)
		if home.Device != s.Device {
			replica = c.CopyHere(value)
		}
		t.become(c.Keep(replica).SetRequiresGrad(value.RequiresGrad()))
	}
	return nil
}

// become replaces the replica on the tie's stage. With nil the tie has none.
func (t tie) become(replica *torch.Tensor) {
	old := t.handles[0].Replica()
	for _, h := range t.handles {
		h.Replicate(replica)
	}
	if old != nil {
		old.SetGradOf(nil)
		old.Free()
	}
}

// refresh makes a tie's replica equal to the value that the stage before it has sent. On the same
// device the replica shares the value's memory. The value may have changed since: an optimizer has
// stepped, or the parameter was replaced. A replica that is equal is not written, because the
// graphs of runs between forward and backward have saved it.
func (p *Pipe) refresh(c *torch.Ctx, s *Stage, t tie, value *torch.Tensor) {
	from, replica := p.stages[t.from.stage].Device, t.tensor()
	if from == s.Device {
		if !nn.SameMemory(value, replica) {
			t.become(c.Keep(c.Detach(value)).SetRequiresGrad(replica.RequiresGrad()))
		}
		return
	}
	if from.Kind != torch.KindCPU || s.Device.Kind != torch.KindCPU {
		value = c.CopyHere(value)
	}
	c.NoGrad(func() {
		if !c.Equal(replica, value) {
			c.Copy_(replica, value)
		}
	})
}

// dropReplicaGrads drops the gradients that a failed backward has left in the replicas. A caller
// cannot drop them, as the model's gradients are those of the parameters.
func (s *Stage) dropReplicaGrads() {
	for _, t := range s.ties {
		if t.from.stage >= 0 {
			t.tensor().SetGradOf(nil)
		}
	}
}

// forget frees the replicas of parameters that live on other stages.
func (s *Stage) forget() {
	for _, t := range s.ties {
		if t.from.stage >= 0 {
			t.become(nil)
		}
	}
}
