package pipe

import (
	"time"

	"penstock.example/torch"
)

// clock notes when the work of a worker comes to the beginnings and ends of its actions. On a GPU
// that is not known before the work is done.
type clock struct {
	base  torch.Moment
	begun time.Duration // when base was, since the beginning of the run
	marks []torch.Moment
}

func newClock(c *torch.Ctx, begun time.Duration) *clock {
	return &clock{base: c.Moment(), begun: begun}
}

// mark notes the point that the work queued so far comes to.
func (k *clock) mark(c *torch.Ctx) { k.marks = append(k.marks, c.Moment()) }

// at is the time of a mark since the beginning of the run, once the worker's stream has been waited
// for.
func (k *clock) at(i int) time.Duration { return k.begun + k.marks[i].Since(k.base) }

func (k *clock) free() {
	k.base.Free()
	for _, m := range k.marks {
		m.Free()
	}
}
