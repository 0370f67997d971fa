package pipe

import (
	"fmt"
	"maps"
	"sync"

	"penstock/schedule"
)

// program is a graph with what running it asks for.
type program struct {
	planned *schedule.Program
	*schedule.Graph
	awaited []bool // by id: another worker waits for the action
	latest  []int  // by id: schedule.Graph.LatestReceives
}

type programKey struct {
	microBatches int
	phase        schedule.Phase
	planned      *planned
}

// programs are those that were made. Layers may ask for them while runs are being started, so the lock is not that of submitting.
type programs struct {
	mu   sync.Mutex
	made map[programKey]*program
}

// Program is what the workers do in a Step of so many micro-batches: what schedule.Simulate predicts, and what a recorded timeline is of. Its workers are in the order of Devices.
// The caller must not change it. It returns an error if there are no such programs, as for less than one micro-batch. Where a stage's policy is Optimal it is that
// of the last batch, if it had so many; before it is planned nothing is known to be recomputed.
func (p *Pipe) Program(microBatches int) (*schedule.Program, error) {
	now := p.plans.now.Load()
	if now != nil && now.microBatches() != microBatches {
		now = nil
	}
	g, err := p.graph(programKey{microBatches, schedule.Whole, now.origin()})
	if err != nil {
		return nil, err
	}
	return g.planned, nil
}

// forgetPrograms forgets those of a plan that is made no more.
func (p *Pipe) forgetPrograms(of *planned) {
	if of == nil {
		return
	}
	p.programs.mu.Lock()
	defer p.programs.mu.Unlock()
	maps.DeleteFunc(p.programs.made, func(key programKey, _ *program) bool { return key.planned == of.made })
}

// graph is the program for a number of micro-batches, made and checked once.
func (p *Pipe) graph(key programKey) (*program, error) {
	p.programs.mu.Lock()
	defer p.programs.mu.Unlock()
	if g, ok := p.programs.made[key]; ok {
		return g, nil
	}
	workers := make([]int, len(p.stages))
	for i, s := range p.stages {
		workers[i] = s.worker
	}
	planned, err := p.cfg.Schedule(schedule.Config{
		Stages: len(p.stages), MicroBatches: key.microBatches, Worker: workers, Phase: key.phase,
		Recompute: func(stage, microBatch int) bool { return len(p.scriptOf(key.planned, stage, microBatch).recompute) > 0 },
		Capacity:  p.capacity(key),
		Skips:     edges(p.stages),
	})
	if err == nil {
		err = schedule.Check(planned, schedule.Limits{})
	}
	if err != nil {
		return nil, fmt.Errorf("pipe: %w", err)
	}
	g := &program{planned: planned, Graph: planned.Graph()}
	g.latest = g.LatestReceives()
	g.awaited = make([]bool, len(g.Actions))
	for _, deps := range g.Cross {
		for _, id := range deps {
			g.awaited[id] = true
		}
	}
	if p.programs.made == nil {
		p.programs.made = map[programKey]*program{}
	}
	p.programs.made[key] = g
	return g, nil
}

// capacity is how many outputs, and gradients, may wait on a link between neighbours: any number, or none where memory is planned and there is none for them. What is inferred is not planned.
func (p *Pipe) capacity(key programKey) int {
	if key.planned == nil && key.phase == schedule.ForwardOnly && p.optimal() || key.planned != nil && !key.planned.buffered {
		return schedule.Meet
	}
	return 0
}
