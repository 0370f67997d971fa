package pipe

import (
	"slices"
	"sync"

	"penstock.example/internal/engine"
	"penstock.example/internal/link"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// Sent values wait in the sender's memory until they are received, so peaks differ between runs. A
// plan with costs predicts the highest peak. Without costs, the peak is measured for each action.
// Values that were received before the action ended, but may be received later in another run
// (schedule.Graph.LatestReceives), are added.

// SafeLimit is, by device in the order of Devices, a limit in bytes (torch.Device.SetLimit) that is
// enough to repeat all calls so far. A measured peak may not be enough: the next time a neighbour
// may receive later. The limit is 0 if memory is not counted, and may be too high if something else
// uses the devices. For a device of another process it is from the end of the last run.
func (p *Pipe) SafeLimit() []int64 {
	out := make([]int64, len(p.workers))
	for i := range out {
		out[i] = p.memory.of(i).Safe
	}
	return out
}

// Peaks is the most bytes live on each device, in the order of Devices, since torch.ResetPeak in
// its own process. For a device of another process it is from the end of the last run or update.
func (p *Pipe) Peaks() []int64 {
	out := make([]int64, len(p.workers))
	for i, w := range p.workers {
		if out[i] = p.memory.of(i).Peak; w != nil {
			out[i] = w.device.Memory().Peak
		}
	}
	return out
}

// deviceBytes is a device's SafeLimit, and its peak if it is in another process.
type deviceBytes struct{ Safe, Peak int64 }

type deviceMemory struct {
	mu sync.Mutex
	at map[int]deviceBytes // by worker
}

func (d *deviceMemory) of(worker int) deviceBytes {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.at[worker]
}

func (d *deviceMemory) raise(worker int, bytes int64) { d.set(worker, bytes, d.of(worker).Peak) }

func (d *deviceMemory) set(worker int, safe, peak int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.at[worker] = deviceBytes{max(d.at[worker].Safe, safe), peak}
}

// ledger finds the safe limit of a worker's device in a pass.
type ledger struct {
	r       *run
	worker  int
	planned int64 // predicted peak, or 0
	waiting []int // receives of parcels that may still wait
	sums    int64 // bytes of sums over replicas that may still run
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

// note counts an action that has ended, before other workers learn of its end.
func (l *ledger) note(id int) {
	g, a := l.r.program, l.r.program.Actions[id]
	total := engine.OwnPeak(l.r.p.workers[l.worker].device)
	if l.planned > 0 {
		l.most = max(l.most, total)
		return
	}
	l.waiting = slices.DeleteFunc(l.waiting, func(receive int) bool { return g.latest[receive] <= id })
	for _, receive := range l.waiting {
		if l.r.done[receive].Load() || !l.r.workerHere(g.Worker[receive]) { // otherwise total has the parcel
			total += l.r.parcelBytes[receive]
		}
	}
	if a.Kind == schedule.Reduce && id+1 < g.First[l.worker+1] { // a sum that runs beside later actions
		l.sums = max(l.sums, l.r.p.stages[a.Stage].reductionBytes())
	}
	l.most = max(l.most, total+l.sums)
	if a.Kind.Send() {
		receive, _ := g.IndexOf(a.Matching())
		l.waiting = append(l.waiting, receive)
	}
}

func bytesOf(p link.Parcel) (bytes int64) {
	seen := map[*torch.Tensor]bool{nil: true}
	for _, v := range slices.Concat(p.Lists...) {
		if !seen[v.Tensor] {
			seen[v.Tensor] = true
			_, n := v.Tensor.Storage()
			bytes += n
		}
	}
	return bytes
}
