package pipe

import (
	"context"
	"maps"
	"slices"

	"penstock.example/internal/engine"
	"penstock.example/internal/link"
	"penstock.example/internal/stream"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// Parcels between different GPUs of different processes go by NCCL, all others through the memory
// of the hosts. NCCL has no communicator between two processes on one GPU.

// gpus is how this process reaches the GPUs of others; tests replace it.
type gpus struct {
	id     func(torch.Device) string // unique to a GPU; "" if NCCL does not reach it
	comms  func() link.Communicators
	copies func(torch.Device) stream.Stream
}

var nccl = gpus{link.GPU, func() link.Communicators { return &link.NCCL{} }, engine.NewStream}

// endOf numbers the workers of all replicas, which are the ends of GPU links.
func (p *Pipe) endOf(replica, worker int) int { return replica*len(p.workers) + worker }

// gpuEdges lists the edges between different GPUs of different processes, in both directions:
// between stages of a replica, and between replicas for sums. ids has the GPU of each end.
func (p *Pipe) gpuEdges(ids map[int]string) (edges []schedule.Edge) {
	join := func(a, b int) {
		edge := schedule.Edge{From: a, To: b}
		if ids[a] != "" && ids[b] != "" && ids[a] != ids[b] && !slices.Contains(edges, edge) {
			edges = append(edges, edge, schedule.Edge{From: b, To: a})
		}
	}
	count, _ := p.cfg.replicas()
	for k := range count {
		for to, later := range p.stages {
			for from, s := range p.stages[:to] {
				skips := func(s stageSkip) bool { return s.from.stage == from }
				ties := func(t tie) bool { return t.from.stage == from }
				if p.cfg.Ranks[from] != p.cfg.Ranks[to] && (from == to-1 ||
					slices.ContainsFunc(later.skips, skips) || slices.ContainsFunc(later.ties, ties)) {
					join(p.endOf(k, s.worker), p.endOf(k, later.worker))
				}
			}
		}
		for w := range p.workers {
			if k > 0 {
				join(p.endOf(k-1, w), p.endOf(k, w))
			}
		}
	}
	return edges
}

// connect opens the links to GPUs of other processes. An error fails the group.
func (p *Pipe) connect(gpus []map[int]string) error {
	if p.cfg.Group == nil {
		return nil
	}
	ids := map[int]string{}
	for _, of := range gpus {
		maps.Copy(ids, of)
	}
	edges := p.gpuEdges(ids)
	if len(edges) == 0 {
		return nil
	}
	here := map[int]link.End{}
	for _, w := range p.mine {
		own := p.workers[w].device
		here[p.endOf(p.replica, w)] = link.End{Device: own,
			Copies: func() stream.Stream { return p.gpus.copies(own) }}
	}
	d, err := link.Connect(p.gpus.comms(), edges, here, p.cfg.Group.Failed(),
		func(err error) { _ = p.failGroup(err) },
		func(own []link.NamedID, failed error) ([][]link.NamedID, error) {
			return meet(context.Background(), p, "the links between GPUs", own, failed)
		})
	if p.direct = d; err != nil {
		return p.failGroup(err)
	}
	var ends []int
	for _, s := range p.stages {
		ends = append(ends, p.endOf(p.replica, s.worker))
	}
	p.remote.SetDirect(d, ends)
	for i, l := range p.replicaLinks {
		var ends []int
		for k := range p.cfg.Replicas {
			ends = append(ends, p.endOf(k, p.stages[i].worker))
		}
		l.SetDirect(d, ends)
	}
	return nil
}
