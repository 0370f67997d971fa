package nn

// ExtraKey names a value that is no tensor and goes with a batch to every layer and micro-batch as
// it is: a length, a mode, a table.
//
//	var width = nn.NewExtra[int]("width")
//
//	p.Step(ctx, pipe.Batch{Input: x, Target: y, Extras: []nn.Extra{width.With(7)}}, loss)
//
//	func (l *layer) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { ... width.In(c) ... }
//
// Layers on several goroutines read the value at the same time: it must not change while a run uses
// it.
type ExtraKey[T any] struct{ name string }

// Extra is a value under its key.
type Extra struct {
	key   any
	value any
}

// NewExtra makes a key. Two keys of one name are different: the name is for messages.
func NewExtra[T any](name string) *ExtraKey[T] { return &ExtraKey[T]{name} }

// With is a value under the key.
func (k *ExtraKey[T]) With(v T) Extra { return Extra{k, v} }

// Lookup is the run's value, or false if it has none.
func (k *ExtraKey[T]) Lookup(c *Ctx) (v T, ok bool) {
	for _, e := range c.extras {
		if e.key == any(k) {
			v, _ = e.value.(T) // not a T is nil, of a T that is an interface
			return v, true
		}
	}
	return v, false
}

// In is the run's value. Without one it fails as an operator does.
func (k *ExtraKey[T]) In(c *Ctx) T {
	v, ok := k.Lookup(c)
	if !ok {
		c.fail("extra", nil, "the run has no extra %q; give it to the batch, or to nn.Config", k.name)
	}
	return v
}

// Extras lists the run's extras. The caller must not change the list.
func (c *Ctx) Extras() []Extra { return c.extras }
