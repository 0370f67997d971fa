package pipe

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"penstock.example/internal/link"
	"penstock.example/internal/stream"
	"penstock.example/nn"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// Replicas of the pipeline train the same model on their own rows, with the same program. After the
// last backward of a stage its processes sum the gradients in the order of replicas, so that timing
// does not change the bits, and pass the sum back:
//
//	replica 0   g0 ─────────► ┌─ g0+g1+g2
//	replica 1   g0+g1 ──────► ◄┘─┐
//	replica 2   (g0+g1)+g2 ───►  ◄┘
//
// Gradients move one by one, so that a replica holds one more than its own. Buffers, such as
// running statistics, move up the same way from replica 0.

// replicas is the number of replicas, and the index of this process's replica.
func (cfg Config) replicas() (count, index int) {
	count = max(cfg.Replicas, 1)
	if cfg.Group == nil {
		return count, 0
	}
	return count, cfg.Group.Rank() / (cfg.Group.Size() / count)
}

// gpuIDs has, by end, the ID of each GPU of this process that NCCL reaches.
func (p *Pipe) gpuIDs() map[int]string {
	out := map[int]string{}
	for _, w := range p.mine {
		if id := p.gpus.id(p.workers[w].device); id != "" {
			out[p.end(p.replica, w)] = id
		}
	}
	return out
}

// rank is the rank in the group of the process that has a stage in a replica.
func (cfg Config) rank(stage, replica int) int {
	count, _ := cfg.replicas()
	return replica*(cfg.Group.Size()/count) + cfg.Ranks[stage]
}

// ofMine is the part of a list by rank for this process's replica.
func ofMine[T any](cfg Config, byRank []T) []T {
	count, index := cfg.replicas()
	each := len(byRank) / count
	return byRank[index*each : (index+1)*each]
}

func reducing(g schedule.Generator) schedule.Generator {
	return func(c schedule.Config) (*schedule.Program, error) {
		p, err := g(c)
		if err != nil {
			return nil, err
		}
		return schedule.AddReduce(p), nil
	}
}

// connectProcesses makes the links between the processes of the replica, and between the replicas
// of each stage.
func (p *Pipe) connectProcesses() {
	count, replica := p.cfg.replicas()
	if p.replica = replica; p.cfg.Group == nil {
		return
	}
	var own []int
	each := link.MaxTag / 2 / len(p.stages)
	for i, s := range p.stages {
		own = append(own, p.cfg.rank(i, replica))
		if count == 1 {
			continue
		}
		var ranks []int
		for k := range count {
			ranks = append(ranks, p.cfg.rank(i, k))
		}
		values := max(len(s.Params())+len(s.buffers), 1)
		p.between = append(p.between, link.NewRemote(p.cfg.Group, ranks, values,
			link.Tags{First: link.MaxTag/2 + i*each, Count: each}))
	}
	p.remote = link.NewRemote(p.cfg.Group, own, p.cfg.Chunks, link.Tags{Count: link.MaxTag / 2})
}

// reduction is the most bytes of another replica that a stage holds at once.
func (s *Stage) reduction() (bytes int64) {
	for _, q := range append(slices.Clone(s.trained), s.buffers...) {
		bytes = max(bytes, q.Bytes())
	}
	return bytes
}

var errSummed = errors.New("pipe: a gradient is summed over the replicas already; Update or nn.ZeroGrads " +
	"after each step, or set Batch.Accumulate in all steps but the last")

// endsWithSum reports whether the backward of a run ends with the sum over replicas.
func (r *run) endsWithSum() bool { return !r.batch.Accumulate && !r.retain }

// checkNoSummedGrads refuses to add to summed gradients: they would count once for each replica.
func (p *Pipe) checkNoSummedGrads() error {
	if p.between == nil || p.unsummed.Load() {
		return nil
	}
	for _, s := range p.stages {
		for _, q := range s.trained {
			if s.Here && q.Exists() && q.Tensor().HasGrad() {
				return errSummed
			}
		}
	}
	return nil
}

// noteGrads is called after a backward.
func (r *run) noteGrads() { r.p.unsummed.Store(r.p.between != nil && !r.endsWithSum()) }

// ladder links the replicas of a stage. Values go up, and sums come down.
type ladder struct {
	c        *torch.Ctx
	l        link.Link
	k, count int // index of this replica, and number of replicas
}

func up(k, i int) schedule.Action {
	return schedule.Action{Kind: schedule.SendActivation, Stage: k, MicroBatch: i, Peer: k + 1}
}

func down(k, i int) schedule.Action {
	return schedule.Action{Kind: schedule.SendGradient, Stage: k, MicroBatch: i, Peer: k - 1}
}

func (x ladder) send(at schedule.Action, t *torch.Tensor) error {
	p := link.Parcel{Device: x.c.Device()}
	if t != nil {
		t = x.c.Keep(x.c.Detach(t))
	}
	p.Add(link.Values(t))
	return x.l.Send(x.c, at, p)
}

func (x ladder) receive(at schedule.Action) (*torch.Tensor, error) {
	p, err := x.l.Receive(x.c, at)
	if err != nil {
		return nil, err
	}
	return x.c.Adopt(p.Take()[0].Tensor), nil
}

// passUp receives value i from the replica below, merges it and sends the result up.
func (x ladder) passUp(i int, value func() *torch.Tensor, merge func(below *torch.Tensor)) error {
	if x.k > 0 {
		below, err := x.receive(up(x.k-1, i))
		if err != nil {
			return err
		}
		merge(below)
	}
	if x.k < x.count-1 {
		return x.send(up(x.k, i), value())
	}
	return nil
}

// passDown receives sum i from the replica above as the gradient of t, and sends it down.
func (x ladder) passDown(i int, t *torch.Tensor) error {
	if x.k < x.count-1 {
		sum, err := x.receive(down(x.k+1, i))
		if err == nil {
			err = x.l.Settle(up(x.k, i)) // the sent gradient has arrived, and may be overwritten
		}
		if err != nil {
			return err
		}
		x.setGrad(t, sum, x.c.Copy_)
	}
	if x.k > 0 {
		return x.send(down(x.k, i), x.c.GradOf(t))
	}
	return nil
}

// setGrad changes the gradient of t by given, or makes given the gradient if t has none.
func (x ladder) setGrad(t, given *torch.Tensor, change func(grad, given *torch.Tensor) *torch.Tensor) {
	if grad := x.c.GradOf(t); grad != nil && given != nil {
		change(grad, given)
	} else if given != nil {
		t.SetGradOf(given)
	}
}

// reduce sums a stage's gradients over the replicas. Buffers get the values of replica 0.
func (r *run) reduce(c *torch.Ctx, a schedule.Action) error {
	if r.p.between == nil || !r.endsWithSum() {
		return nil
	}
	s, l := r.p.stages[a.Stage], r.p.between[a.Stage].Open(0)
	defer l.Free()
	c.SetGrad(false)
	x := ladder{c: c, l: l}
	x.count, x.k = r.p.cfg.replicas()
	add := func(grad, below *torch.Tensor) *torch.Tensor { return c.Add_(grad, below, 1) }
	for _, part := range []struct {
		what string
		of   []nn.NamedParam
		do   func(i int, t *torch.Tensor) error
	}{
		{"gradient", s.trained, func(i int, t *torch.Tensor) error {
			value := func() *torch.Tensor { return c.GradOf(t) }
			return x.passUp(i, value, func(below *torch.Tensor) { x.setGrad(t, below, add) })
		}},
		{"value", s.buffers, func(i int, t *torch.Tensor) error {
			value := func() *torch.Tensor { return t }
			return x.passUp(len(s.trained)+i, value, func(first *torch.Tensor) { c.Copy_(t, first) })
		}},
		{"sum of gradients", s.trained, x.passDown},
	} {
		for i, q := range part.of {
			mark := c.Mark()
			if err := part.do(i, q.Tensor()); err != nil {
				return fmt.Errorf("replica %d, the %s of %s: %w", x.k, part.what, q.Name, err)
			}
			c.Release(mark)
		}
	}
	return nil
}

// sums are a worker's sums over replicas. They wait for other processes, while the worker goes on
// with other stages. They run one after the other on their own stream.
//
//	worker    1B0 1B1 ┬─ 0B0 0B1 ┬─ 0RED
//	sums              └─ 1RED ───┘
type sums struct {
	r      *run
	worker int
	ended  chan struct{} // closed when the latest sum has ended; nil before the first
	events []schedule.Event
}

// begin begins a sum of all gradients on the worker's stream.
func (s *sums) begin(a schedule.Action) {
	r, w := s.r, s.r.p.workers[s.worker]
	ready, before, ended := w.stream.Record(), s.ended, make(chan struct{})
	s.ended = ended
	go func() {
		defer close(ended)
		defer ready.Free()
		if before != nil {
			<-before
		}
		if r.failed.Load() {
			return
		}
		c, start := torch.NewCtx(torch.Options{Device: w.device, Threads: w.threads}), time.Since(r.begun)
		c.SetStream(w.sums)
		if err := recovered(c, func() error {
			return stream.Apart(stream.Host{}, w.sums, ready, func() error { return r.reduce(c, a) })
		}); err != nil {
			r.failAt(a, "", err)
		}
		s.events = append(s.events, schedule.Event{Worker: s.worker, Action: a, Start: start,
			End: time.Since(r.begun), Live: w.device.Memory().Live})
	}()
}

func (s *sums) wait() {
	if s.ended != nil {
		<-s.ended
	}
}
