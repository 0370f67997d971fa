package pipe

import (
	"penstock.example/internal/engine"
	"penstock.example/internal/link"
	"penstock.example/internal/stream"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// Hold sets a function that may delay workers. It is called before each action, with the worker and
// the id of the action in the graph, and at the end of a worker with the id after its last action.
func (p *Pipe) Hold(f func(worker, action int)) {
	if p.hold = f; f == nil {
		p.hold = func(int, int) {}
	}
}

// SetStreams sets the stream of each worker, what its caller queues on, and the streams of copies from
// one worker to another.
func (p *Pipe) SetStreams(own func(worker int) stream.Stream, given stream.Stream,
	copies func(from, to int) stream.Stream) {
	for _, i := range p.mine {
		p.workers[i].stream, p.workers[i].caller = own(i), given
	}
	p.copies.open = copies
}

// WrapStreams has the workers, and the copies between them, use what wrap makes of their streams, and
// takes given for the stream of the caller, until it is undone.
func (p *Pipe) WrapStreams(wrap func(stream.Stream) stream.Stream, given stream.Stream) (undo func()) {
	own, copies := map[int]stream.Stream{}, map[[2]int]stream.Stream{}
	for i, w := range p.workers {
		own[i], w.stream, w.caller = w.stream, wrap(w.stream), given
	}
	p.copies.open = func(from, to int) stream.Stream {
		s := engine.NewStream(p.workers[from].device)
		copies[[2]int{from, to}] = s
		return wrap(s)
	}
	return func() {
		for i, w := range p.workers {
			w.stream, w.caller = own[i], engine.DefaultStream(w.device)
			w.drain()
		}
		for _, s := range copies {
			stream.End(stream.Host{}, s)
		}
		p.copies = copyStreams{of: copies}
	}
}

// Apart gives stages on one device workers of their own where lanes has different numbers for them. A GPU's
// then have streams of their own.
func (cfg Config) Apart(lanes ...int) Config {
	cfg.lanes = lanes
	return cfg
}

// SetLink has the stages joined by links that f makes, one for each mini-batch. It gets the worker
// of each stage, and what says that the mini-batch has failed.
func (p *Pipe) SetLink(f func(worker []int, failed func() bool) link.Link) {
	var worker []int
	for _, s := range p.stages {
		worker = append(worker, s.worker)
	}
	p.newLink = func(failed func() bool) link.Link { return f(worker, failed) }
}

// SetGPUs has the devices be GPUs, which communicators that are given reach from other processes. It
// comes before Place.
func (p *Pipe) SetGPUs(id func(torch.Device) string, comms func() link.Communicators,
	copies func(torch.Device) stream.Stream) {
	p.gpus = gpus{id, comms, copies}
}

// SetSums sets the stream of each worker's sums over replicas.
func (p *Pipe) SetSums(f func(worker int) stream.Stream) {
	for _, i := range p.mine {
		p.workers[i].sums = f(i)
	}
}

// Program is the program of the last plan if it has so many micro-batches, and otherwise one in which a
// stage with the policy Optimal recomputes nothing.
func (p *Pipe) Program(microBatches int) (*schedule.Program, error) {
	if last := p.Plan(); last != nil && last.Program.MicroBatches == microBatches {
		return last.Program, nil
	}
	found, err := p.unmeasuredPlan(microBatches, false)
	if err != nil {
		return nil, err
	}
	return found.plan.Program, nil
}

// Workers is the worker of each stage.
func (cfg Config) Workers() []int {
	worker, _ := cfg.workers()
	return worker
}
