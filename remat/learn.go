package remat

import (
	"slices"
	"sync"

	"penstock/remat/plan"
	"penstock/torch"
)

// loss is what happens between the return of Forward and the backward of the last layer, in bytes.
type loss struct {
	peak     int64 // most beside those at Forward's return
	gradient int64 // of the output's gradient, y(L)
	// held is what the caller holds in backward, beside what there was when Forward began and the output: the loss, and what it has left in the caller's context. lent is gradient that the caller still
	// holds when the last layer has used it.
	held, lent int64
}

// guess is for a loss that is not known: what cross-entropy would take, and as much again.
func guess(output int64) loss { return loss{peak: 4 * output, gradient: output, held: 2 * output} }

// lesson learns a loss from a step. A nil lesson learns nothing.
type lesson struct {
	device torch.Device

	mu       sync.Mutex
	waiting  bool  // between Forward and backward
	taught   bool  // backward has come
	was      int64 // peak of the account before
	returned int64 // live at Forward's return
	arrived  int64 // live when backward came
	behind   int64 // live when the last layer's backward was over
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
	if l != nil {
		l.behind = l.device.Memory().Live
	}
}

// end is when backward is over. What the caller lent is what is live beyond what the operations say.
func (l *lesson) end(j *job) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.taught {
		return
	}
	l.taught = false
	f, err := forecastOf(withLoss(j.terms, l.loss), j.ops, l.loss)
	if err != nil {
		return
	}
	at := slices.Index(j.ops, plan.Op{Kind: plan.Backward, Layer: j.chain - 1})
	l.loss.lent = max(0, l.behind-l.arrived-(f.live[at]-f.live[j.atLoss()]))
	j.m.learnt(j.s, l.loss)
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
	l.waiting, l.taught = false, false
}

// forgetLesson ends a lesson that another forward would disturb.
func (m *Module) forgetLesson() {
	m.lesson.drop()
	m.lesson = nil
}

// learnt makes a loss known. The next forward of these shapes looks for a plan again.
func (m *Module) learnt(s *instance, l loss) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s.loss, s.stale = &l, !s.given
	if f, err := m.forecast(s, s.ops, s.present, s.base); err == nil {
		m.last = f.most()
	}
}

// stepped counts backwards that are over.
func (m *Module) stepped() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.steps++
}
