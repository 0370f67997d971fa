package pipe

import "penstock/schedule"

// Hold lets f delay workers: it is called before each action, with the worker and the action's id in the graph that is run, and when a worker is through, with the id after its last.
func (p *Pipe) Hold(f func(worker, action int)) { p.hold = f }

// InferGraph is what workers run in an Infer of so many micro-batches.
func (p *Pipe) InferGraph(microBatches int) (*schedule.Graph, error) {
	g, err := p.graph(programKey{microBatches: microBatches, phase: schedule.ForwardOnly})
	if err != nil {
		return nil, err
	}
	return g.Graph, nil
}
