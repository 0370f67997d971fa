package pipe

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"

	"penstock.example/internal/arg"
	"penstock.example/internal/link"
	"penstock.example/nn"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// Replicas of the pipeline train the same model on rows of their own. Each has members of the group
// of its own, in as many processes as there are, and runs the same program. Where the program says
// so, after the last backward of a stage, the members that have the stage sum its gradients. They do
// so one after the other, in the order of replicas, so that the bits do not depend on who is late,
// and hand the sum back:
//
//	replica 0   g0 ─────────► ┌─ g0+g1+g2
//	replica 1   g0+g1 ──────► ◄┘─┐
//	replica 2   (g0+g1)+g2 ───►  ◄┘
//
// Parameters move one by one, so that a replica holds one of them beside its own. Buffers, such as
// running statistics, go the same way: those of replica 0 count.

// replicas is how many replicas there are, and which of them this process belongs to.
func (cfg Config) replicas() (count, index int) {
	count = max(cfg.Replicas, 1)
	if cfg.Group == nil {
		return count, 0
	}
	return count, cfg.Group.Rank() / (cfg.Group.Size() / count)
}

// checkReplicas checks that the members of the group can be shared out.
func (cfg Config) checkReplicas() error {
	refuse := func(problem, remedy string) error {
		return &ConfigError{Of: "pipe", Field: "Replicas", Value: cfg.Replicas, Problem: problem, Remedy: remedy}
	}
	if err := arg.AtLeast("pipe", "Replicas", cfg.Replicas, 0); err != nil {
		return err
	}
	switch n := max(cfg.Replicas, 1); {
	case cfg.Group == nil && n > 1:
		return refuse("there is no Group", "want one whose members have all replicas: of group.Join, or of group.Local within this process")
	case cfg.Group != nil && cfg.Group.Size()%n != 0:
		return refuse(fmt.Sprintf("the group has %d members", cfg.Group.Size()), "want a number of members that the replicas share out evenly")
	}
	return nil
}

// thisProcess tells this process from all others, on any machine.
var thisProcess = sync.OnceValue(rand.Text)

// host is where a member of the group has its stages.
type host struct {
	Process string
	Devices []string
	GPUs    map[int]string // by worker: gpus.id
}

// host is that of this member.
func (p *Pipe) host() host {
	out := host{Process: thisProcess(), GPUs: map[int]string{}}
	for _, w := range p.mine {
		out.Devices = append(out.Devices, p.workers[w].device.String())
		if id := p.gpus.id(p.workers[w].device); id != "" {
			out.GPUs[w] = id
		}
	}
	return out
}

// apart refuses members of one process that share a device, whose memory is counted as that of one.
func (cfg Config) apart(hosts []host) error {
	count, _ := cfg.replicas()
	what := "replicas"
	if count == 1 {
		what, count = "ranks", len(hosts)
	}
	for b := range hosts {
		for a := range b {
			for _, d := range hosts[b].Devices {
				if hosts[a].Process == hosts[b].Process && slices.Contains(hosts[a].Devices, d) {
					return &ConfigError{Of: "pipe", Field: "Devices", Value: cfg.Devices,
						Problem: fmt.Sprintf("%s %d and %d are in one process, and both have stages on %s", what, a*count/len(hosts), b*count/len(hosts), d),
						Remedy:  "want others for each, as they are by default"}
				}
			}
		}
	}
	return nil
}

// rank is the rank in the group of the process that has a stage in a replica.
func (cfg Config) rank(stage, replica int) int {
	count, _ := cfg.replicas()
	return replica*(cfg.Group.Size()/count) + cfg.Ranks[stage]
}

// ofMine are those of a list by rank that are of this process's replica.
func ofMine[T any](cfg Config, byRank []T) []T {
	count, index := cfg.replicas()
	each := len(byRank) / count
	return byRank[index*each : (index+1)*each]
}

// reducing is a generator whose programs reduce gradients over replicas.
func reducing(g schedule.Generator) schedule.Generator {
	return func(c schedule.Config) (*schedule.Program, error) {
		p, err := g(c)
		if err != nil {
			return nil, err
		}
		return schedule.AddReduce(p), nil
	}
}

// connectReplicas makes the links between the processes that have a stage, by stage.
func (p *Pipe) connectReplicas(tags link.Tags) error {
	count, _ := p.cfg.replicas()
	each := tags.Count / len(p.stages)
	for i, s := range p.stages {
		var ranks []int
		for k := range count {
			ranks = append(ranks, p.cfg.rank(i, k))
		}
		values := max(len(s.Params())+len(s.buffers), 1)
		l, err := link.NewRemote(p.cfg.Group, ranks, values, link.Tags{First: tags.First + i*each, Count: each})
		if err != nil {
			return fmt.Errorf("pipe: stage %d has %d parameters and buffers and %d replicas: %w", i, values, count, err)
		}
		p.between = append(p.between, l)
	}
	return nil
}

// reduction is the most bytes of another replica that a stage holds at a time.
func (s *Stage) reduction() (bytes int64) {
	for _, q := range append(slices.Clone(s.trained), s.buffers...) {
		bytes = max(bytes, q.Bytes())
	}
	return bytes
}

// planSums gives a plan that was made for a pipe alone the sums over replicas.
func (p *Pipe) planSums() error {
	given := p.cfg.Plan
	if given == nil || given.Program.Reduces() {
		return nil
	}
	var bytes []int64
	for _, s := range p.stages {
		bytes = append(bytes, s.reduction())
	}
	p.cfg.Plan = given.Reducing(bytes)
	if err := p.cfg.Plan.Check(); err != nil {
		return p.cfg.refusePlan(fmt.Sprintf("the sums over replicas take up to %d bytes more: %v", slices.Max(bytes), err),
			"want a plan that a pipe with Replicas has made, or higher limits in it")
	}
	return nil
}

// Gradients that are summed over the replicas are the same on all of them. What a later run added
// would be summed with them, which would then count once for each replica. So a run ends with the sum,
// and the next begins without gradients; or it does not, and the next adds to those of its replica.

var errSummed = errors.New("pipe: a parameter has a gradient that was summed over the replicas before, and would count once for each; " +
	"Update, or drop the gradients with nn.ZeroGrads, after each step, or set Batch.Accumulate in all steps but the last")

// sums says whether the backward of a run ends with the sum over replicas.
func (r *minibatch) sums() bool { return !r.batch.Accumulate && !r.retain }

// addable refuses a run of replicas that finds gradients which are summed.
func (p *Pipe) addable() error {
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

// ran notes that a backward has added to the gradients.
func (r *minibatch) ran() { r.p.unsummed.Store(r.p.between != nil && !r.sums()) }

// reduce sums a stage's gradients over the replicas.
func (r *minibatch) reduce(c *torch.Ctx, a schedule.Action) error {
	if r.p.between == nil || !r.sums() { // of one replica, or by a later run
		return nil
	}
	count, k := r.p.cfg.replicas()
	s, l := r.p.stages[a.Stage], r.p.between[a.Stage].Open(0)
	defer l.Free()
	c.SetGrad(false)
	up := func(k, i int) schedule.Action {
		return schedule.Action{Kind: schedule.SendActivation, Stage: k, MicroBatch: i, Peer: k + 1}
	}
	down := func(k, i int) schedule.Action {
		return schedule.Action{Kind: schedule.SendGradient, Stage: k, MicroBatch: i, Peer: k - 1}
	}
	send := func(at schedule.Action, t *torch.Tensor) error {
		p := link.Parcel{Device: c.Device()}
		if t != nil {
			t = c.Keep(c.Detach(t))
		}
		p.Add(link.Values(t))
		return l.Send(c, at, p)
	}
	receive := func(at schedule.Action) (*torch.Tensor, error) {
		p, err := l.Receive(c, at)
		if err != nil {
			return nil, err
		}
		t := p.Take()[0].Tensor
		if t != nil {
			c.Adopt(t)
		}
		return t, nil
	}
	// each does something for each of a list, and says for which and where it has failed.
	each := func(list []nn.NamedParam, what string, f func(i int, q nn.NamedParam) error) error {
		for i, q := range list {
			mark := c.Mark()
			if err := f(i, q); err != nil {
				return fmt.Errorf("replica %d, the %s of %s: %w", k, what, q.Name, err)
			}
			c.Release(mark)
		}
		return nil
	}
	err := each(s.trained, "gradient", func(i int, q nn.NamedParam) error {
		grad := c.GradOf(q.Tensor())
		if k > 0 {
			before, err := receive(up(k-1, i))
			switch {
			case err != nil:
				return err
			case grad == nil && before != nil:
				q.Tensor().SetGradOf(before)
				grad = c.GradOf(q.Tensor())
			case before != nil:
				c.Add_(grad, before, 1)
			}
		}
		if k == count-1 {
			return nil
		}
		return send(up(k, i), grad)
	})
	if err != nil {
		return err
	}
	err = each(s.buffers, "value", func(i int, q nn.NamedParam) error {
		at := len(s.trained) + i
		if k > 0 {
			first, err := receive(up(k-1, at))
			if err != nil {
				return err
			}
			c.Copy_(q.Tensor(), first)
		}
		if k == count-1 {
			return nil
		}
		return send(up(k, at), q.Tensor())
	})
	if err != nil {
		return err
	}
	return each(s.trained, "sum of gradients", func(i int, q nn.NamedParam) error {
		if k < count-1 {
			sum, err := receive(down(k+1, i))
			if err == nil {
				err = l.Settle(up(k, i)) // it has arrived, and may be overwritten
			}
			grad := c.GradOf(q.Tensor())
			switch {
			case err != nil:
				return err
			case grad == nil && sum != nil:
				q.Tensor().SetGradOf(sum)
			case sum != nil:
				c.Copy_(grad, sum)
			}
		}
		if k == 0 {
			return nil
		}
		return send(down(k, i), c.GradOf(q.Tensor()))
	})
}
