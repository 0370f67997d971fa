package optim_test

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	_ "penstock.example/internal/draws" // sets the number of draws
	"penstock.example/optim"
)

// A scaler does what torch.amp.GradScaler does: half of the scale after gradients that are not
// finite, twice the scale after Interval updates in a row.
func TestScaler(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		interval := rapid.IntRange(1, 4).Draw(t, "interval")
		s := optim.Scaler{Scale: 8, Interval: interval}
		scale, row, skipped := 8.0, 0, 0
		for _, finite := range rapid.SliceOfN(rapid.Bool(), 0, 60).Draw(t, "finite") {
			if got := s.Factor(); got != scale {
				t.Fatalf("scale %v, want %v", got, scale)
			}
			err := s.Done(finite)
			if want := !finite && scale == 1; errors.Is(err, optim.ErrNeverFinite) != want || (err != nil) != want {
				t.Fatalf("at scale %v, finite %v: %v", scale, finite, err)
			}
			switch row++; {
			case !finite:
				row, scale = 0, max(scale/2, 1)
				skipped++
			case row == interval:
				row, scale = 0, min(scale*2, 1<<24)
			}
		}
		if s.Skipped != skipped || s.Validate() != nil {
			t.Fatalf("%+v, %v, want %d skipped", s, s.Validate(), skipped)
		}
	})
	var zero optim.Scaler
	if zero.Validate() != nil || zero.Factor() != 65536 || zero.Interval != 2000 {
		t.Errorf("the zero scaler is %+v", zero)
	}
	for _, wrong := range []optim.Scaler{{Scale: 3}, {Scale: -2}, {Scale: 0.5}, {Scale: 1 << 25}, {Interval: -1}, {Passed: -1}, {Skipped: -1}} {
		if wrong.Validate() == nil {
			t.Errorf("%+v is accepted", wrong)
		}
	}
}
