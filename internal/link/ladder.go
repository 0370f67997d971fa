package link

import (
	"penstock.example/schedule"
	"penstock.example/torch"
)

// Ladder sums gradients over replicas, in the order of replicas, so that timing does not change the
// bits. Gradients go up, and sums come down:
//
//	replica 0   g0 ─────────► ┌─ g0+g1+g2
//	replica 1   g0+g1 ──────► ◄┘─┐
//	replica 2   (g0+g1)+g2 ───►  ◄┘
type Ladder struct {
	Ctx            *torch.Ctx
	Link           Link
	Replica, Count int // index of this replica, and number of replicas
}

func up(replica, i int) schedule.Action {
	return schedule.Action{Kind: schedule.SendActivation, Stage: replica, MicroBatch: i, Peer: replica + 1}
}

func down(replica, i int) schedule.Action {
	return schedule.Action{Kind: schedule.SendGradient, Stage: replica, MicroBatch: i, Peer: replica - 1}
}

func (x Ladder) send(at schedule.Action, t *torch.Tensor) error {
	p := Parcel{Device: x.Ctx.Device()}
	if t != nil {
		t = x.Ctx.Keep(x.Ctx.Detach(t))
	}
	p.Add(Values(t))
	return x.Link.Send(x.Ctx, at, p)
}

func (x Ladder) receive(at schedule.Action) (*torch.Tensor, error) {
	p, err := x.Link.Receive(x.Ctx, at)
	if err != nil {
		return nil, err
	}
	return x.Ctx.Adopt(p.Take()[0].Tensor), nil
}

// AddUp adds the gradients of the replicas below to the gradient of t, and sends the sum up as
// value i.
func (x Ladder) AddUp(i int, t *torch.Tensor) error {
	return x.climb(i, func(below *torch.Tensor) {
		x.setGrad(t, below, func(grad, below *torch.Tensor) { x.Ctx.Add_(grad, below, 1) })
	}, func() *torch.Tensor { return x.Ctx.GradOf(t) })
}

// CopyUp copies replica 0's t, as value i, to all replicas.
func (x Ladder) CopyUp(i int, t *torch.Tensor) error {
	return x.climb(i, func(below *torch.Tensor) { x.Ctx.Copy_(t, below) }, func() *torch.Tensor { return t })
}

// climb takes value i from the replica below, if there is one, and gives it to the replica above.
func (x Ladder) climb(i int, take func(below *torch.Tensor), give func() *torch.Tensor) error {
	if x.Replica > 0 {
		below, err := x.receive(up(x.Replica-1, i))
		if err != nil {
			return err
		}
		take(below)
	}
	if x.Replica == x.Count-1 {
		return nil
	}
	return x.send(up(x.Replica, i), give())
}

// PassDown receives sum i from the replica above as the gradient of t, and sends it down.
func (x Ladder) PassDown(i int, t *torch.Tensor) error {
	if x.Replica < x.Count-1 {
		sum, err := x.receive(down(x.Replica+1, i))
		if err == nil {
			err = x.Link.Settle(up(x.Replica, i)) // the sent gradient has arrived, and may be overwritten
		}
		if err != nil {
			return err
		}
		x.setGrad(t, sum, func(grad, sum *torch.Tensor) { x.Ctx.Copy_(grad, sum) })
	}
	if x.Replica == 0 {
		return nil
	}
	return x.send(down(x.Replica, i), x.Ctx.GradOf(t))
}

// setGrad changes the gradient of t by given, or makes given the gradient if t has none.
func (x Ladder) setGrad(t, given *torch.Tensor, change func(grad, given *torch.Tensor)) {
	if grad := x.Ctx.GradOf(t); grad != nil && given != nil {
		change(grad, given)
	} else if given != nil {
		t.SetGradOf(given)
	}
}
