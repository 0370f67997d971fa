package autoremat

import (
	"slices"
	"sync"

	"penstock.example/remat"
	"penstock.example/torch"
)

// loss is what the caller allocates between the return of Forward and the backward of the last
// layer, in bytes.
type loss struct {
	peak     int64 // peak, beside what is live when Forward returns
	gradient int64 // the output's gradient, y(L)
	// held is what the caller holds during backward, beside the output and what was live when
	// Forward began: the loss, and what it has left in the caller's context. lent is gradient that
	// the caller still holds when the last layer has used it.
	held, lent int64
	kept       int64 // the part of held that is still live when Backward has returned
}

// seedBytes is the size of the gradient with which backward from a scalar begins, a float32. It is
// part of held until Backward returns.
const seedBytes = 4

// guess is the estimate for a loss that was not measured: twice what cross-entropy takes of an
// output of so many bytes.
func guess(output int64) loss {
	return loss{peak: 4 * output, gradient: output, held: 2 * output, kept: 2 * output}
}

// observation measures a step: the bytes of its loss, and the peak of each operation. Operations
// may differ from their measurement, because gradients come in another layout. A nil observation
// measures nothing. The methods may be called on any goroutine.
type observation struct {
	device torch.Device

	mu         sync.Mutex
	over       bool
	peaks      []int64 // by operation so far: its peak, beside what was live before it
	waiting    bool    // between Forward and backward
	complete   bool    // backward has begun, so that the loss is measured
	peakBefore int64   // the account's peak when Forward returned
	returned   int64   // live at Forward's return
	arrived    int64   // live when backward began
	afterLast  int64   // live when the last layer's backward had returned
	loss       loss
}

// forwardReturned begins the measurement of the loss.
func (o *observation) forwardReturned() {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	account := o.device.Memory()
	o.waiting, o.peakBefore, o.returned = true, account.Peak, account.Live
	o.device.ResetPeak()
}

// operation runs an operation and measures its peak.
func (o *observation) operation(do func()) {
	if !o.active() {
		do()
		return
	}
	account := o.device.Memory()
	o.device.ResetPeak()
	defer o.device.RaisePeak(account.Peak)
	do()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.peaks = append(o.peaks, o.device.Memory().Peak-account.Live)
}

// active says whether operations are still measured.
func (o *observation) active() bool {
	if o == nil {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.over
}

// gradientsArrived ends the measurement of the loss: backward begins with the gradients of the
// output.
func (o *observation) gradientsArrived(grads []*torch.Tensor) {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.waiting {
		return
	}
	account := o.device.Memory()
	o.device.RaisePeak(o.peakBefore)
	o.waiting, o.complete, o.arrived = false, true, account.Live
	o.loss.peak, o.loss.gradient = account.Peak-o.returned, bytesOf(grads)
	o.loss.held = account.Live - o.returned - o.loss.gradient
	o.loss.kept = max(0, o.loss.held-seedBytes)
}

// bytesOf returns the bytes of the distinct storages of tensors.
func bytesOf(list []*torch.Tensor) (sum int64) {
	var seen []uintptr
	for _, t := range list {
		if t == nil {
			continue
		}
		if id, bytes := t.Storage(); !slices.Contains(seen, id) {
			seen, sum = append(seen, id), sum+bytes
		}
	}
	return sum
}

// lastLayerDone reads the live bytes after the last layer's backward.
func (o *observation) lastLayerDone() {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.afterLast = o.device.Memory().Live
}

// backwardReturned computes what the caller has lent, which is what is live beyond the replay of
// the operations, and hands the results to the module.
func (o *observation) backwardReturned(j *job) {
	if o == nil {
		return
	}
	o.mu.Lock()
	complete, loss, peaks, freed := o.complete, o.loss, o.peaks, o.arrived-o.afterLast
	o.complete, o.over = false, true
	o.mu.Unlock()
	if !complete {
		return
	}
	f, err := forecastOf(withLoss(j.costs, loss), j.ops, loss)
	if err != nil {
		return
	}
	at := slices.Index(j.ops, remat.Op{Kind: remat.Backward, Layer: j.chain - 1})
	loss.lent = max(0, f.live[j.atLoss()]-f.live[at]-freed)
	// o.mu is free here: a forward that begins holds the module's lock while it stops observations.
	j.m.recordStep(j, loss, peaks)
}

// stop ends the measurement without a result and restores the account's peak.
func (o *observation) stop() {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.waiting {
		o.device.RaisePeak(o.peakBefore)
	}
	o.waiting, o.complete, o.over = false, false, true
}

// stopObserving ends a measurement that another forward would disturb.
func (m *Module) stopObserving() {
	m.observed.stop()
	m.observed = nil
}

// recordStep stores what a step has shown. If it differs from what the plan assumed, the next
// forward of these shapes solves again.
func (m *Module) recordStep(j *job, l loss, peaks []int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := j.s
	news := s.loss == nil || *s.loss != l
	s.loss = &l
	f, err := forecastOf(withLoss(j.costs, l), j.ops, l)
	if err != nil || len(peaks) != len(j.ops) {
		return
	}
	live := int64(0)
	for k, op := range j.ops {
		more := peaks[k] - (f.peaks[k] - live)
		if more != 0 && op.Kind != remat.LossStep && s.correction(op.Layer, j.output).add(op.Kind, j.present[op.Layer], more) {
			news = true
		}
		live = f.live[k]
	}
	s.observed[j.kind()] = true
	s.stale = s.stale || news && !s.given
	if f, err := m.forecast(s, j.ops, j.present, j.missingBytes, j.from); err == nil && s.latest == j {
		m.last = f.peak()
	}
}

// correction is what operations of a unit take beyond their measurement, in bytes.
type correction struct {
	plain, save  int64 // forward without a graph and with one
	first, later int64 // backward that allocates the parameters' gradients, and that adds to them
}

// add corrects an operation. It reports whether it did: a unit with gradients of some parameters
// only shows neither case.
func (c *correction) add(kind remat.Kind, p presence, bytes int64) bool {
	switch {
	case kind == remat.ForwardSave:
		c.save += bytes
	case kind != remat.Backward:
		c.plain += bytes
	case p == missing:
		c.first += bytes
	case p == complete:
		c.later += bytes
	default:
		return false
	}
	return true
}

// stepKind groups steps whose measurements would be the same.
type stepKind struct {
	present presence
	output  output
}

func (j *job) kind() stepKind { return stepKind{summary(j.present), j.output} }

// summary returns the presence that all units share, or partial.
func summary(present []presence) presence {
	for _, p := range present {
		if p != present[0] {
			return partial
		}
	}
	return present[0]
}

// stepped counts a backward that has returned.
func (m *Module) stepped() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.steps++
}
