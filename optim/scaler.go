package optim

import (
	"cmp"
	"errors"
	"fmt"
	"math"
)

// Scaler scales the loss like torch.amp.GradScaler, because gradients in float16 underflow below 6e-8.
// The loss is multiplied by Scale, and the float32 sums of gradients are divided by it before the update.
// If a gradient is infinite or NaN, the update is skipped and Scale is halved. After Interval updates in a
// row Scale is doubled.
//
// Scales are powers of two, so scaling does not round. The zero value has PyTorch's settings: Scale 65536
// and Interval 2000. A Scaler belongs to one goroutine at a time, and has no state besides its fields.
type Scaler struct {
	Scale    float64 // the factor of the next loss
	Interval int     // updates in a row after which Scale is doubled
	Passed   int     // updates in a row so far
	Skipped  int     // total of skipped updates
}

// ErrNeverFinite is the error of a Scaler if gradients are not finite at the lowest scale.
var ErrNeverFinite = errors.New("optim: the gradients are not finite even at loss scale 1: the loss or a " +
	"layer gives infinity or NaN; lower the learning rate, or look for the layer")

// Larger scales could make the loss itself infinite.
const lowestScale, highestScale = 1, 1 << 24

// Factor returns the factor of the next loss, and sets default fields.
func (s *Scaler) Factor() float64 {
	s.Scale, s.Interval = cmp.Or(s.Scale, 1<<16), cmp.Or(s.Interval, 2000)
	return s.Scale
}

// Validate returns an error if a field is invalid.
func (s *Scaler) Validate() error {
	fraction, _ := math.Frexp(s.Scale)
	if s.Scale != 0 && (fraction != 0.5 || s.Scale < lowestScale || s.Scale > highestScale) ||
		min(s.Interval, s.Passed, s.Skipped) < 0 {
		return fmt.Errorf("optim: Scaler: %+v; want a Scale that is 0 or a power of two from 1 to 2^24, and "+
			"no negative number", *s)
	}
	return nil
}

// Done chooses the next scale after an update, or a skipped update if the gradients were not finite. It
// returns ErrNeverFinite if they were not finite at the lowest scale.
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
