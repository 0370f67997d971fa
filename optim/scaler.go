package optim

import (
	"cmp"
	"errors"
	"fmt"
	"math"
)

// Scaler chooses the factor of a loss for a backward in a narrow type. Gradients in float16
// underflow below 6e-8. The loss is multiplied by Scale, and the gradients, which are float32 when
// they are added up, are divided by it before the update. If a gradient is infinite or NaN, the
// update is left out and the scale is lowered. After Interval updates in a row it is raised. This is
// torch.amp.GradScaler.
//
// All scales are powers of two, so that nothing is rounded that neither underflows nor overflows. The
// zero value has PyTorch's settings: Scale 65536, Interval 2000, and factors 2 and 1/2. A Scaler
// belongs to one goroutine at a time. Its fields are all its state.
type Scaler struct {
	Scale    float64 // the factor of the next loss
	Interval int     // updates in a row after which Scale is doubled
	Passed   int     // updates in a row so far
	Skipped  int     // updates that were left out, in all
}

// ErrNeverFinite is the error of a Scaler if gradients are not finite at scale 1 either.
var ErrNeverFinite = errors.New("optim: the gradients are not finite at loss scale 1 either: the loss " +
	"or a layer " +
	"gives infinity or NaN; lower the learning rate, or look for the layer")

// the least and the highest scale. A higher one makes the loss itself infinite.
const lowestScale, highestScale = 1, 1 << 24

// Factor is the factor of the next loss. It fills in the defaults.
func (s *Scaler) Factor() float64 {
	s.Scale, s.Interval = cmp.Or(s.Scale, 1<<16), cmp.Or(s.Interval, 2000)
	return s.Scale
}

// Validate returns an error if the scale is no power of two from 1 to 2^24, or a number is negative.
func (s *Scaler) Validate() error {
	fraction, _ := math.Frexp(s.Scale)
	if s.Scale != 0 && (fraction != 0.5 || s.Scale < lowestScale || s.Scale > highestScale) ||
		min(s.Interval, s.Passed, s.Skipped) < 0 {
		return fmt.Errorf("optim: Scaler: %+v; want a Scale that is a power of two from 1 to 2^24, or 0, "+
			"and nothing below 0", *s)
	}
	return nil
}

// Done says whether the gradients were finite, so that there was an update, and chooses the next
// scale. It returns ErrNeverFinite if they were not finite although the scale is the lowest.
func (s *Scaler) Done(finite bool) error {
	scale := s.Factor()
	if !finite {
		s.Passed = 0
		s.Skipped++
		s.Scale = max(scale/2, lowestScale)
		if scale == lowestScale {
			return ErrNeverFinite
		}
		return nil
	}
	if s.Passed++; s.Passed >= s.Interval {
		s.Passed, s.Scale = 0, min(scale*2, highestScale)
	}
	return nil
}
