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
// last backward of a stage its processes sum the gradients, one after the other (link.Ladder). So a
// replica holds one gradient of another replica at a time. Buffers, such as running statistics,
// come from replica 0.

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
			out[p.endOf(p.replica, w)] = id
		}
	}
	return out
}

// rank is the rank in the group of the process that has a stage in a replica.
func (cfg Config) rank(stage, replica int) int {
	count, _ := cfg.replicas()
	return replica*(cfg.Group.Size()/count) + cfg.Ranks[stage]
}

// ofReplica is the part of a list by rank that belongs to this process's replica.
func ofReplica[T any](cfg Config, byRank []T) []T {
	count, index := cfg.replicas()
	each := len(byRank) / count
	return byRank[index*each : (index+1)*each]
}

func withReductions(g schedule.Generator) schedule.Generator {
	return func(c schedule.Config) (*schedule.Program, error) {
		p, err := g(c)
		if err != nil {
			return nil, err
		}
		return schedule.AddReduce(p), nil
	}
}

// connectProcesses makes the links between processes of the replica, and between replicas of stages.
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
		p.replicaLinks = append(p.replicaLinks, link.NewRemote(p.cfg.Group, ranks, values,
			link.Tags{First: link.MaxTag/2 + i*each, Count: each}))
	}
	p.remote = link.NewRemote(p.cfg.Group, own, p.cfg.Chunks, link.Tags{Count: link.MaxTag / 2})
}

// reductionBytes is the most bytes of another replica that a stage holds at once.
func (s *Stage) reductionBytes() (bytes int64) {
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
	if p.replicaLinks == nil || p.unsummed.Load() {
		return nil
	}
	for _, s := range p.stages {
		if s.Here && slices.ContainsFunc(s.trained, hasGrad) {
			return errSummed
		}
	}
	return nil
}

func (r *run) noteUnsummed() { r.p.unsummed.Store(r.p.replicaLinks != nil && !r.endsWithSum()) }

// reduce sums a stage's gradients over the replicas. Buffers get the values of replica 0.
func (r *run) reduce(c *torch.Ctx, a schedule.Action) error {
	if r.p.replicaLinks == nil || !r.endsWithSum() {
		return nil
	}
	s := r.p.stages[a.Stage]
	x := link.Ladder{Ctx: c, Link: r.p.replicaLinks[a.Stage].Open(0)}
	defer x.Link.Free()
	c.SetGrad(false)
	x.Count, x.Replica = r.p.cfg.replicas()
	for _, part := range []struct {
		what string
		of   []nn.NamedParam
		do   func(i int, t *torch.Tensor) error
	}{
		{"gradient", s.trained, x.AddUp},
		{"value", s.buffers, func(i int, t *torch.Tensor) error { return x.CopyUp(len(s.trained)+i, t) }},
		{"sum of gradients", s.trained, x.PassDown},
	} {
		for i, q := range part.of {
			mark := c.Mark()
			if err := part.do(i, q.Tensor()); err != nil {
				return fmt.Errorf("replica %d, the %s of %s: %w", x.Replica, part.what, q.Name, err)
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

// begin starts the sum of a stage's gradients after all work that the worker has queued.
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
		c, start := torch.NewCtx(torch.Options{Device: w.device, Threads: w.threads}), time.Since(r.start)
		c.SetStream(w.sums)
		if err := recovered(c, func() error {
			return stream.RunBeside(stream.Host{}, w.sums, ready, func() error { return r.reduce(c, a) })
		}); err != nil {
			r.failAt(a, "", err)
		}
		s.events = append(s.events, schedule.Event{Worker: s.worker, Action: a, Start: start,
			End: time.Since(r.start), Live: w.device.Memory().Live})
	}()
}

func (s *sums) wait() {
	if s.ended != nil {
		<-s.ended
	}
}
