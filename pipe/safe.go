package pipe

import (
	"slices"
	"sync"
	"sync/atomic"

	"penstock.example/schedule"
	"penstock.example/torch"
)

// The memory of a device depends on how far stages run ahead: values for other stages wait on the device
// until they are received. All else is the same in every run. So the most bytes of a device are found
// from any run, as the largest sum over actions of
//
//	own     the most bytes of the action without values that wait
//	waits   the bytes lent (torch.Device.Lend) to values that wait, from the action that makes them to
//	        the first that cannot start before they were received (schedule.Graph.LatestReceives)

// SafeLimit is the lowest limit in bytes (torch.Device.SetLimit) under which all calls so far can be
// repeated one after the other, by device in the order of Devices. It holds however far stages run ahead of
// each other. A measured peak (torch.Device.Memory) can be lower, as a neighbour may receive later the
// next time.
//
// The limit may be too high if something else uses the devices, a stage passes on memory that it
// received, or gradients are summed over replicas while a worker goes on. With the policy Optimal it is at
// least the predicted peak. It is 0 for a device whose memory is not counted. Of a device of another
// process it is as of the end of the last run.
func (p *Pipe) SafeLimit() []int64 {
	out := make([]int64, len(p.workers))
	for i := range out {
		out[i] = p.devices.change(i, nil).Safe
	}
	return out
}

// Peaks is the most bytes live on each device, in the order of Devices, since its torch.ResetPeak in
// its own process. Of a device of another process it is as of the end of the last run or update.
func (p *Pipe) Peaks() []int64 {
	out := make([]int64, len(p.workers))
	for i, w := range p.workers {
		if out[i] = p.devices.change(i, nil).Peak; w != nil {
			out[i] = w.device.Memory().Peak
		}
	}
	return out
}

// deviceBytes is the most bytes that a device can have held in any run, and, of a device of another
// process, the most bytes live at a time.
type deviceBytes struct{ Safe, Peak int64 }

type devices struct {
	mu sync.Mutex
	at map[int]*deviceBytes
}

// change changes the bytes of a device by f, unless it is nil, and returns them.
func (d *devices) change(worker int, f func(*deviceBytes)) deviceBytes {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.at == nil {
		d.at = map[int]*deviceBytes{}
	}
	if d.at[worker] == nil {
		d.at[worker] = &deviceBytes{}
	}
	if f != nil {
		f(d.at[worker])
	}
	return *d.at[worker]
}

func (d *devices) raise(worker int, bytes int64) {
	d.change(worker, func(b *deviceBytes) { b.Safe = max(b.Safe, bytes) })
}

// count begins a part of a run in which nothing waits for other devices. Until done is called, all
// bytes on the worker's device are its own.
func (p *Pipe) count(worker int) (done func()) {
	d := p.workers[worker].device
	d.OwnPeak()
	return func() { p.devices.raise(worker, d.OwnPeak()) }
}

// outgoing is a value for other stages. It exists until all of them have received it.
type outgoing struct {
	tensors []*torch.Tensor // nil where one is absent
	kind    schedule.Kind   // of the receives
	to      []location      // on the stages that receive it
}

// receives lists the ids of the receives, in a program, of a value that an action has made.
func (w *outgoing) receives(g *program, a schedule.Action) (ids []int) {
	for _, at := range w.to {
		by, ok := g.IndexOf(schedule.Action{Kind: w.kind, Stage: at.stage, MicroBatch: a.MicroBatch, Peer: a.Stage})
		if ok && !slices.Contains(ids, by) {
			ids = append(ids, by)
		}
	}
	return ids
}

// loan is memory that waits to be received.
type loan struct {
	device  torch.Device
	number  uint64
	bytes   int64
	made    int          // the action that made it
	from    []int        // the receives
	pending atomic.Int32 // how many of them are still to be done
}

// ledger is the memory of a pass.
type ledger struct {
	r     *run
	graph *program
	own   []int64   // by action: the most bytes without what waits
	made  [][]*loan // by worker
	due   [][]*loan // by receive
	ended []int64   // by worker: the most bytes after the last action
}

func newLedger(r *run) *ledger {
	workers, actions := len(r.p.workers), len(r.graph.Actions)
	return &ledger{r: r, graph: r.graph, own: make([]int64, actions), made: make([][]*loan, workers),
		due: make([][]*loan, actions), ended: make([]int64, workers)}
}

// enter notes on its worker that an action has ended, before others are told. d is the device of
// the worker.
func (l *ledger) enter(id int, d torch.Device, list []outgoing) {
	for _, taken := range l.due[id] {
		if taken.pending.Add(-1) == 0 {
			taken.device.EndLoan(taken.number) // where something else holds the memory as well
		}
	}
	worker := l.graph.Worker[id]
	before := len(l.made[worker])
	for i := range list {
		var from []int
		for _, t := range list[i].tensors {
			if t == nil || l.r.ofBatch(t) {
				continue
			}
			number, bytes := d.Lend(t)
			if bytes == 0 {
				continue
			}
			if from == nil {
				from = list[i].receives(l.graph, l.graph.Actions[id])
			}
			fresh := l.made[worker][before:]
			at := slices.IndexFunc(fresh, func(o *loan) bool { return o.number == number })
			if at < 0 {
				l.made[worker] = append(l.made[worker], &loan{device: d, number: number, bytes: bytes, made: id, from: from})
				continue
			}
			for _, by := range from {
				if !slices.Contains(fresh[at].from, by) {
					fresh[at].from = append(slices.Clip(fresh[at].from), by)
				}
			}
		}
	}
	for _, o := range l.made[worker][before:] {
		o.pending.Store(int32(len(o.from)))
		for _, by := range o.from {
			if !l.r.here(l.graph.Worker[by]) { // the receive is over before the action that it is due for
				by = max(l.graph.latest[by]-1, id)
			}
			if by > id || l.graph.Worker[by] != worker {
				l.due[by] = append(l.due[by], o)
			} else {
				o.pending.Add(-1)
			}
		}
	}
	l.own[id] = d.OwnPeak()
}

// close ends the loans of a run that failed. Otherwise memory that others hold as well would stay
// lent.
func (l *ledger) close() {
	for _, list := range l.made {
		for _, o := range list {
			o.device.EndLoan(o.number)
		}
	}
}

// most is the most bytes that a worker's device can hold.
func (l *ledger) most(worker int) (most int64) {
	first, end := l.graph.First[worker], l.graph.First[worker+1]
	change := make([]int64, end-first+1) // of the bytes that wait, before each action
	for _, o := range l.made[worker] {
		until := o.made + 1
		for _, by := range o.from {
			until = max(until, l.graph.latest[by])
		}
		change[o.made+1-first] += o.bytes
		change[until-first] -= o.bytes
	}
	waits, sums := int64(0), int64(0)
	for id := first; id < end; id++ {
		if waits += change[id-first]; l.graph.beside(worker, id) {
			sums = max(sums, l.r.p.stages[l.graph.Actions[id].Stage].reduction())
		}
		most = max(most, l.own[id]+waits+sums)
	}
	// the outputs are gathered after all that was sent to the last stage was received
	return max(most, l.ended[worker])
}

// waits lists the values for other stages that an action has made.
func (r *run) waits(a schedule.Action) (list []outgoing) {
	stage, state := r.p.stages[a.Stage], r.state(a)
	add := func(kind schedule.Kind, tensors []*torch.Tensor, to ...location) {
		list = append(list, outgoing{tensors, kind, to})
	}
	switch a.Kind {
	case schedule.Forward:
		if !r.last(a.Stage) {
			add(schedule.ReceiveActivation, state.sent, location{stage: a.Stage + 1})
		}
		for i, p := range stage.skips {
			if sent := state.skips[i].sent; sent != nil {
				add(schedule.ReceiveActivation, []*torch.Tensor{sent}, p.to...)
			}
		}
	case schedule.Backward, schedule.BackwardInput:
		if a.Stage > 0 {
			add(schedule.ReceiveGradient, state.inGrad, location{stage: a.Stage - 1})
		}
		for i, p := range stage.skips {
			if p.received() {
				add(schedule.ReceiveGradient, state.skips[i].back, p.from)
			}
		}
		for i, t := range stage.ties {
			if t.received() {
				add(schedule.ReceiveGradient, []*torch.Tensor{state.ties[i].back}, t.from)
			}
		}
	}
	return list
}

// ofBatch reports whether a tensor is in the memory of the batch.
func (r *run) ofBatch(t *torch.Tensor) bool {
	memory, _ := t.Storage()
	return slices.ContainsFunc(r.inputs, func(v Value) bool {
		other, _ := v.Tensor.Storage()
		return other == memory
	})
}
