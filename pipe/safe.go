package pipe

import (
	"slices"
	"sync"

	"penstock.example/internal/engine"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// The memory of a device depends on how far its stages run ahead: a sent value waits on the device until
// it is received. All else is the same in every run. A plan with the costs of its units predicts the most
// bytes. Without one they are, over the actions of a run, at most
//
//	the peak of the action
//	+ values that were received by the end of the action, but could still wait for their receivers
//	  in another run (schedule.Graph.LatestReceives)

// SafeLimit is a limit in bytes (torch.Device.SetLimit) under which all calls so far can be repeated one
// after the other, by device in the order of Devices, however far stages run ahead of each other. A
// measured peak can be lower, as a neighbour may receive later the next time. With the policy Optimal or a
// given plan it is the predicted peak, unless more was measured. It may be too high if something else uses
// the devices. It is 0 where memory is not counted. Of a device of another process it is as of the end of
// the last run.
func (p *Pipe) SafeLimit() []int64 {
	out := make([]int64, len(p.workers))
	for i := range out {
		out[i] = p.devices.of(i).Safe
	}
	return out
}

// Peaks is the most bytes live on each device, in the order of Devices, since its torch.ResetPeak in
// its own process. Of a device of another process it is as of the end of the last run or update.
func (p *Pipe) Peaks() []int64 {
	out := make([]int64, len(p.workers))
	for i, w := range p.workers {
		if out[i] = p.devices.of(i).Peak; w != nil {
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
	at map[int]deviceBytes
}

func (d *devices) of(worker int) deviceBytes {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.at[worker]
}

// raise raises the safe limit of a worker's device.
func (d *devices) raise(worker int, bytes int64) { d.set(worker, bytes, d.of(worker).Peak) }

func (d *devices) set(worker int, safe, peak int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.at[worker] = deviceBytes{max(d.at[worker].Safe, safe), peak}
}

// ledger is the memory of a worker in a pass.
type ledger struct {
	r       *run
	worker  int
	planned int64 // bytes that the plan predicts, or 0
	waiting []int // receives of parcels that may still wait
	sums    int64 // of sums over replicas that may still go on
	most    int64
}

func (r *run) ledger(worker int) *ledger {
	l := &ledger{r: r, worker: worker}
	if r.plan != nil {
		l.planned = r.plan.plan.Devices[worker].Peak
	}
	l.most = l.planned
	return l
}

// note notes that an action has ended, before others are told.
func (l *ledger) note(id int) {
	g, a := l.r.graph, l.r.graph.Actions[id]
	total := engine.OwnPeak(l.r.p.workers[l.worker].device)
	if l.planned > 0 {
		l.most = max(l.most, total)
		return
	}
	l.waiting = slices.DeleteFunc(l.waiting, func(receive int) bool { return g.latest[receive] <= id })
	for _, receive := range l.waiting {
		if l.r.done[receive].Load() || !l.r.here(g.Worker[receive]) { // else it is in the peak
			total += l.r.parcels[receive]
		}
	}
	if a.Kind == schedule.Reduce && id+1 < g.First[l.worker+1] { // the others go on beside the worker
		l.sums = max(l.sums, l.r.p.stages[a.Stage].reduction())
	}
	l.most = max(l.most, total+l.sums)
	if a.Kind.Send() {
		receive, _ := g.IndexOf(a.Matching())
		l.waiting = append(l.waiting, receive)
	}
}

// end ends the pass after the last action.
func (l *ledger) end() {
	p := l.r.p
	p.devices.raise(l.worker, max(l.most, engine.OwnPeak(p.workers[l.worker].device)))
}

func storageBytes(list ...*torch.Tensor) (bytes int64) {
	once, _ := torch.Distinct(list)
	for _, t := range once {
		if t != nil {
			_, n := t.Storage()
			bytes += n
		}
	}
	return bytes
}
