package pipe

import (
	"errors"
	"slices"

	"penstock.example/nn"
	"penstock.example/torch"
)

// Stages exchange skips and gradients of shared parameters, too. A skip that is stashed on one
// stage and popped on others has a stageSkip on each of them. A parameter that several stages use
// has a tie on each of them.
//
//	stage 0          stage 1          stage 2          stage 3
//	stash s  ─────────────────────►  pop s, pop s ──── pop s       s moves 0>2 and 0>3
//	uses w           .                uses w, w        uses w      gradients of w move 3>2, 2>0
//
// A tie sends its gradient to the tie before it, whose backward continues the sum. So gradients are
// summed one use after the other, as by autograd on an uncut model.

// stageSkip is a skip on the stage that stashes it, or on a stage that pops it.
type stageSkip struct {
	from  location   // of the skip on the stage that stashes it; stage -1 on that stage itself
	place int        // index among the skips that the stage stashes, or receives
	stash int        // the layer that stashes it
	pops  int        // how often this stage pops it
	to    []location // of the skip on the stages that pop it, in ascending order
}

type location struct{ stage, index int } // the index is in the stage's skips or ties

// addSkipsAndTies fills in the skips and ties of stages with layers.
func addSkipsAndTies(stages []*Stage, routes []nn.SkipRoute) {
	stageOf := func(layer int) int {
		return slices.IndexFunc(stages, func(s *Stage) bool { return layer < s.first+len(s.Layers) })
	}
	for _, r := range routes {
		home := stageOf(r.Stash)
		from := stages[home]
		source := location{home, len(from.skips)}
		outgoing := stageSkip{stash: r.Stash, from: location{-1, 0}, place: from.leaving}
		for _, p := range r.Pops {
			at := stageOf(p)
			to := stages[at]
			if n := len(outgoing.to); at == home {
				continue
			} else if n == 0 || outgoing.to[n-1].stage != at {
				outgoing.to = append(outgoing.to, location{at, len(to.skips)})
				to.skips = append(to.skips, stageSkip{stash: r.Stash, from: source, place: to.entering})
				to.entering++
			}
			to.skips[len(to.skips)-1].pops++
		}
		if len(outgoing.to) > 0 {
			from.skips = append(from.skips, outgoing)
			from.leaving++
		}
	}
	last := map[*nn.Param]location{} // the tie on the last stage so far
	for i, s := range stages {
		for _, l := range s.Layers {
			for _, p := range nn.Shared(l.Layer) {
				before, known := last[p.Owner()]
				if known && before.stage == i {
					t := &s.ties[before.index]
					t.handles = append(t.handles, p.Param)
					continue
				}
				here := location{i, len(s.ties)}
				if !known {
					before = location{-1, 0}
				} else {
					stages[before.stage].ties[before.index].to = here
				}
				s.ties = append(s.ties, tie{handles: []*nn.Param{p.Param}, from: before, to: location{-1, 0}})
				last[p.Owner()] = here
			}
		}
	}
}

func (s stageSkip) received() bool { return s.from.stage >= 0 }

// tie is a parameter that several stages use, on one of these stages. The parameter lives on the
// first stage; the others have a replica.
type tie struct {
	handles  []*nn.Param // of the stage's layers, in the order of the model
	from, to location    // of the parameter's previous and next tie; stage -1 if there is none
}

// received reports whether the parameter lives on an earlier stage.
func (t tie) received() bool { return t.from.stage >= 0 }

func (t tie) tensor() *torch.Tensor { return t.handles[0].Tensor() }

// home is the stage on which the parameter of a received tie lives, and the tie there.
func (p *Pipe) home(t tie) (stage *Stage, first tie) {
	for first = t; first.received(); {
		stage = p.stages[first.from.stage]
		first = stage.ties[first.from.index]
	}
	return stage, first
}

// checkOwner refuses a model whose handles point to replicas of another pipe: the gradients would
// go there.
func (p *Pipe) checkOwner() error {
	for _, s := range p.stages {
		for _, t := range s.ties {
			own := t.received() && p.placed.Load()
			if !own && slices.ContainsFunc(t.handles, func(h *nn.Param) bool { return h.Replica() != nil }) {
				return errors.New("pipe: another pipe has a parameter of the model; Close that pipe first")
			}
		}
	}
	return nil
}

// replicate makes the stage's replicas of parameters that live on other stages.
func (p *Pipe) replicate(stage int, c *torch.Ctx) error {
	s := p.stages[stage]
	for _, t := range s.ties {
		if !t.received() {
			continue
		}
		home, owner := p.home(t)
		var replica *torch.Tensor
		switch param := t.handles[0]; {
		case !home.Here: // the first parcel brings the value
			replica = c.Zeros(param.DType(), param.Shape()...)
		case home.worker == s.worker:
			replica = c.Detach(owner.tensor())
		default:
			replica = c.CopyHere(owner.tensor())
		}
		t.setReplica(c.Keep(replica).SetRequiresGrad(t.handles[0].Trainable()))
	}
	return nil
}

// setReplica replaces the replica on the tie's stage; with nil it only frees the old one.
func (t tie) setReplica(replica *torch.Tensor) {
	old := t.handles[0].Replica()
	for _, h := range t.handles {
		h.Replicate(replica)
	}
	if old != nil {
		old.SetGradOf(nil)
		old.Free()
	}
}

// refresh makes a tie's replica equal to a value from a device. On the stage's own device the
// replica shares the value's memory. An equal replica is not written, because graphs of runs
// between forward and backward have saved it.
func (p *Pipe) refresh(c *torch.Ctx, s *Stage, t tie, value *torch.Tensor, from torch.Device) {
	replica := t.tensor()
	memory, _ := value.Storage()
	if was, _ := replica.Storage(); from == s.Device && memory == was {
		return
	}
	c.NoGrad(func() {
		switch {
		case c.Call("aten::equal", replica, value)[0].(bool): // waits for a GPU, once a step
		case from == s.Device:
			t.setReplica(c.Keep(c.Detach(value)).SetRequiresGrad(replica.RequiresGrad()))
		default:
			c.Copy_(replica, value)
		}
	})
}

// dropReplicaGrads drops the gradients that a failed backward has left in replicas.
func (s *Stage) dropReplicaGrads() {
	for _, t := range s.ties {
		if t.received() {
			t.tensor().SetGradOf(nil)
		}
	}
}

func (s *Stage) forget() {
	for _, t := range s.ties {
		if t.received() {
			t.setReplica(nil)
		}
	}
}
