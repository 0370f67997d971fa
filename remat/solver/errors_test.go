package solver_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	. "penstock.example/remat"
	. "penstock.example/remat/solver"
)

func TestSolversRefuse(t *testing.T) {
	ctx := context.Background()
	good := dice{layers: 3, bytes: 10}.chain(rand.New(rand.NewPCG(1, 1)))
	bad := good
	bad.Layers = nil
	tests := []struct {
		name string
		call func() error
		want string
	}{
		{"a limit below 0", func() error { _, err := Solve(ctx, good, -1, Options{}); return err }, "a limit of -1 bytes"},
		{"slots below 0", func() error { _, err := Solve(ctx, good, 1, Options{Slots: -3}); return err }, "Slots is -3; want at least 0"},
		{"a table's limit below 0", func() error { _, err := NewTable(ctx, good, -4, Options{}); return err }, "a limit of -4 bytes"},
		{"a chain without layers", func() error { _, err := Solve(ctx, bad, 1, Options{}); return err }, "layers"},
		{"the table of one", func() error { _, err := NewTable(ctx, bad, 1, Options{}); return err }, "layers"},
		{"its least", func() error { _, _, err := Least(bad); return err }, "layers"},
		{"its greatest", func() error { _, err := Greatest(bad); return err }, "layers"},
	}
	for _, test := range tests {
		if err := test.call(); err == nil || !strings.HasPrefix(err.Error(), "remat: ") || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v; want an error of plan that says %q", test.name, err, test.want)
		}
	}
}

func TestSolversStopWithTheirContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	c := dice{layers: 30, bytes: 1 << 20}.chain(rand.New(rand.NewPCG(2, 1)))
	least, _, err := Least(c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Solve(ctx, c, least.Peak, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Solve: %v; want that the context has ended", err)
	}
	if _, err := NewTable(ctx, c, 0, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("NewTable: %v; want that the context has ended", err)
	}
	if _, err := NewStage(ctx, c, true, false); !errors.Is(err, context.Canceled) {
		t.Errorf("NewStage: %v; want that the context has ended", err)
	}
}

// TestNothingIsRecomputedForNothing has layers that take no time, which a solver that looks at
// times alone may run twice: ColossalAI's did, as its comparison preferred to keep inputs. One
// recomputation more than possible happens where the first table, whose slots are coarse, finds a
// plan of the least time: finer ones would not be faster.
func TestNothingIsRecomputedForNothing(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 1))
	for range 40 {
		c := dice{layers: 6, bytes: 30, zeroTimes: true}.chain(r)
		for i := range c.Layers {
			if r.IntN(2) == 0 {
				c.Layers[i].ForwardNoGrad = 0
			}
		}
		least, _, err := Least(c)
		if err != nil {
			t.Fatal(err)
		}
		greatest, err := Greatest(c)
		if err != nil {
			t.Fatal(err)
		}
		limit := least.Peak + r.Int64N(greatest-least.Peak+1)
		p, err := Solve(context.Background(), c, max(limit, 1), Options{Gap: 1e-12})
		if err != nil {
			t.Fatal(err)
		}
		report, err := Check(c, p.Ops)
		if err != nil {
			t.Fatal(err)
		}
		time, recomputed, ok := shortest(c, limit, true)
		if !ok || time != report.Time || report.Recomputed > recomputed+1 {
			t.Errorf("limit %d of %+v: %v with %d recomputations; %v with %d is possible", limit, c, report.Time, report.Recomputed, time, recomputed)
		}
	}
}
