package autoremat

import (
	"slices"
	"sync"

	"penstock/remat"
	"penstock/torch"
)

// loss is what happens between the return of Forward and the backward of the last layer, in bytes.
type loss struct {
	peak     int64 // most beside those at Forward's return
	gradient int64 // of the output's gradient, y(L)
	// held is what the caller holds in backward, beside what there was when Forward began and the output: the loss, and what it has left in the caller's context. lent is gradient that the caller still
	// holds when the last layer has used it.
	held, lent int64
	kept       int64 // of held, when Backward has returned
}

// seed is the gradient that a backward from a number begins with, a float32. It is part of what is held, until Backward returns.
const seed = 4

// guess is for a loss that is not known: what cross-entropy would take, and as much again.
func guess(output int64) loss {
	return loss{peak: 4 * output, gradient: output, held: 2 * output, kept: 2 * output}
}

// lesson learns from a step: the loss, and what operations take that took something else when they were measured, because gradients came in another layout. A nil lesson learns nothing.
type lesson struct {
	device torch.Device

	mu       sync.Mutex
	over     bool
	ops      []int64 // most during each operation so far, beside what was live before
	waiting  bool    // between Forward and backward
	taught   bool    // backward has come
	was      int64   // peak of the account before
	returned int64   // live at Forward's return
	arrived  int64   // live when backward came
	behind   int64   // live when the last layer's backward was over
	loss     loss
}

// begin is at Forward's return.
func (l *lesson) begin() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	account := l.device.Memory()
	l.waiting, l.was, l.returned = true, account.Peak, account.Live
	l.device.ResetPeak()
}

// watch performs an operation.
func (l *lesson) watch(do func()) {
	if !l.learns() {
		do()
		return
	}
	account := l.device.Memory()
	l.device.ResetPeak()
	defer l.device.RaisePeak(account.Peak)
	do()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ops = append(l.ops, l.device.Memory().Peak-account.Live)
}

func (l *lesson) learns() bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.over
}

// arrive is when backward comes, with the gradients of the output.
func (l *lesson) arrive(grads []*torch.Tensor) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.waiting {
		return
	}
	account := l.device.Memory()
	l.device.RaisePeak(l.was)
	l.waiting, l.taught, l.arrived = false, true, account.Live
	l.loss.peak, l.loss.gradient = account.Peak-l.returned, bytesOf(grads)
	l.loss.held = account.Live - l.returned - l.loss.gradient
	l.loss.kept = max(0, l.loss.held-seed)
}

// bytesOf is that of the memory that tensors lie in.
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

// after is when the last layer's backward is over.
func (l *lesson) after() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.behind = l.device.Memory().Live
}

// end is when backward is over. What the caller lent is what is live beyond what the operations say.
func (l *lesson) end(j *job) {
	if l == nil {
		return
	}
	l.mu.Lock()
	taught, loss, peaks, freed := l.taught, l.loss, l.ops, l.arrived-l.behind
	l.taught, l.over = false, true
	l.mu.Unlock()
	if !taught {
		return
	}
	f, err := forecastOf(withLoss(j.terms, loss), j.ops, loss)
	if err != nil {
		return
	}
	at := slices.Index(j.ops, remat.Op{Kind: remat.Backward, Layer: j.chain - 1})
	loss.lent = max(0, f.live[j.atLoss()]-f.live[at]-freed)
	j.m.learnt(j, loss, peaks) // which takes the module's lock: a forward that begins holds that and ends lessons
}

// drop ends the lesson. The account gets back the peak that it had.
func (l *lesson) drop() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting {
		l.device.RaisePeak(l.was)
	}
	l.waiting, l.taught, l.over = false, false, true
}

// forgetLesson ends a lesson that another forward would disturb.
func (m *Module) forgetLesson() {
	m.lesson.drop()
	m.lesson = nil
}

// learnt makes known what a step has shown. If it is news the next forward of these shapes looks for a plan again.
func (m *Module) learnt(j *job, l loss, peaks []int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := j.s
	news := s.loss == nil || *s.loss != l
	s.loss = &l
	f, err := forecastOf(withLoss(j.terms, l), j.ops, l)
	if err != nil || len(peaks) != len(j.ops) {
		return
	}
	live := int64(0)
	for k, op := range j.ops {
		if more := peaks[k] - (f.peaks[k] - live); more != 0 && op.Kind != remat.LossStep && s.correction(op.Layer, j.output).add(op.Kind, j.present[op.Layer], more) {
			news = true
		}
		live = f.live[k]
	}
	s.taught[j.about()] = true
	s.stale = s.stale || news && !s.given
	if f, err := m.forecast(s, j.ops, j.present, j.lacks, j.from); err == nil && s.latest == j {
		m.last = f.most()
	}
}

// correction is what a unit's operations take beyond what was measured, in bytes.
type correction struct {
	plain, save, first, later int64 // forward without gradients and with, backward that makes gradients of parameters and that finds them
}

// add corrects an operation, if it is known which of the cases it was.
func (c *correction) add(kind remat.Kind, p presence, bytes int64) bool {
	switch {
	case kind == remat.ForwardSave:
		c.save += bytes
	case kind != remat.Backward:
		c.plain += bytes
	case p == missing:
		c.first += bytes
	case p == there:
		c.later += bytes
	default:
		return false
	}
	return true
}

// about is what steps have in common that teach the same.
type about struct {
	present presence
	output  output
}

func (j *job) about() about { return about{summary(j.present), j.output} }

// summary is one presence for all units.
func summary(present []presence) presence {
	for _, p := range present {
		if p != present[0] {
			return partial
		}
	}
	return present[0]
}

// stepped counts backwards that are over.
func (m *Module) stepped() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.steps++
}
