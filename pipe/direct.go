package pipe

import (
	"context"
	"fmt"

	"penstock.example/internal/link"
	"penstock.example/internal/stream"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// Stages on GPUs of different processes send each other what they make without their hosts, by NCCL.
// All others of different processes do so through the memory of the hosts: those on CPUs, a GPU and a
// CPU, and two processes on one GPU, for which NCCL has no communicator.

// gpus is how this process reaches GPUs of others. Tests have others.
type gpus struct {
	id     func(torch.Device) string // what tells a GPU from all others; "" where NCCL does not reach it
	comms  func() link.Communicators
	copies func(torch.Device) stream.Stream
}

var nccl = gpus{torch.Device.GPU, func() link.Communicators { return &torch.NCCL{} }, torch.Device.NewStream}

// ways lists the ways between workers of different processes, on different GPUs: both directions of
// all stages that send each other something. ids has the GPU of each worker.
func (p *Pipe) ways(ids []string) (ways []schedule.Edge) {
	seen := map[schedule.Edge]bool{}
	join := func(a, b int) {
		from, to := p.stages[a].worker, p.stages[b].worker
		way, back := schedule.Edge{From: from, To: to}, schedule.Edge{From: to, To: from}
		if p.cfg.Ranks[a] == p.cfg.Ranks[b] || ids[from] == "" || ids[to] == "" || ids[from] == ids[to] || seen[way] {
			return
		}
		seen[way], seen[back] = true, true
		ways = append(ways, way, back)
	}
	for i, s := range p.stages {
		if i > 0 {
			join(i-1, i)
		}
		for _, skip := range s.skips {
			if skip.from.stage >= 0 {
				join(skip.from.stage, i)
			}
		}
		for _, t := range s.ties {
			if t.from.stage >= 0 {
				join(t.from.stage, i)
			}
		}
	}
	return ways
}

// idOfWay is what both ends of a way know it by.
type idOfWay struct {
	Way schedule.Edge
	ID  []byte
}

// connect opens the ways to GPUs of other processes. A failure is the group's, as others wait.
func (p *Pipe) connect(hosts []host) error {
	if p.cfg.Group == nil {
		return nil
	}
	count, _ := p.cfg.replicas()
	any := false
	for k := range count { // all replicas meet, or none
		each := len(hosts) / count
		any = any || len(p.ways(p.gpusOf(hosts[k*each:(k+1)*each]))) > 0
	}
	if !any {
		return nil
	}
	ways := p.ways(p.gpusOf(ofMine(p.cfg, hosts)))
	if err := p.inOrder(); err != nil {
		return err
	}
	here := map[int]link.End{}
	for _, w := range p.mine {
		device := p.workers[w].device
		here[w] = link.End{Device: device, Stream: func() stream.Stream { return p.workers[w].stream },
			Copies: func() stream.Stream { return p.gpus.copies(device) }}
	}
	worker, _ := p.cfg.workers()
	d, err := link.NewDirect(p.gpus.comms(), ways, worker, here, p.cfg.Group.Failed(), func(err error) { _ = p.lost(err) })
	if err != nil {
		return p.lost(err)
	}
	p.direct = d
	var mine []idOfWay
	ids, err := d.IDs()
	for way, id := range ids {
		mine = append(mine, idOfWay{way, id})
	}
	all, err := meet(context.Background(), p, "the ways between GPUs", mine, err)
	if err != nil {
		return err
	}
	given := map[schedule.Edge][]byte{}
	for _, list := range ofMine(p.cfg, all) {
		for _, i := range list {
			given[i.Way] = i.ID
		}
	}
	if err := d.Open(given); err != nil {
		return p.lost(err)
	}
	p.remote.SetDirect(d)
	return nil
}

// gpusOf is the GPU of each worker.
func (p *Pipe) gpusOf(hosts []host) []string {
	out := make([]string, len(p.workers))
	for _, h := range hosts {
		for w, id := range h.GPUs {
			if w >= 0 && w < len(out) {
				out[w] = id
			}
		}
	}
	return out
}

// inOrder refuses a program in which values are received in another order than they are sent: on a way
// they have no names. Generators of package schedule make none.
func (p *Pipe) inOrder() error {
	program, err := p.Program(p.cfg.Chunks)
	if err == nil {
		err = schedule.Check(program, schedule.Limits{InOrder: true})
	}
	const problem, remedy = "between GPUs of different processes values have no names", "want a program that receives in the order in which it sends"
	switch {
	case err == nil:
		return nil
	case p.cfg.Plan != nil:
		return p.cfg.refusePlan(fmt.Sprintf("%s: %v", problem, err), remedy)
	}
	return &ConfigError{Of: "pipe", Field: "Schedule", Value: unquoted(fmt.Sprintf("for %d stages and %d micro-batches", len(p.stages), p.cfg.Chunks)),
		Problem: fmt.Sprintf("%s: %v", problem, err), Remedy: remedy}
}
