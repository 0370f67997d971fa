package solver_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	. "penstock.example/internal/solver"
	. "penstock.example/remat"
)

func TestSolversRefuse(t *testing.T) {
	ctx := context.Background()
	_, negative := Solve(ctx, dice{layers: 3, bytes: 10}.chain(rand.New(rand.NewPCG(1, 1))), -1, Options{})
	_, empty := Solve(ctx, Chain{}, 1, Options{})
	_, curve := Curve(ctx, Chain{}, Options{})
	_, _, least := Least(Chain{})
	for _, err := range []error{negative, empty, curve, least} {
		if err == nil || !strings.HasPrefix(err.Error(), "remat: ") {
			t.Error(err)
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
	if _, err := Curve(ctx, c, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Curve: %v; want that the context has ended", err)
	}
	if _, err := NewStage(ctx, c, true, false); !errors.Is(err, context.Canceled) {
		t.Errorf("NewStage: %v; want that the context has ended", err)
	}
}
