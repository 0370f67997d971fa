package solver_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

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
