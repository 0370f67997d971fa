package group

import (
	"context"
	"errors"
	"slices"
	"testing"
)

// TestAnEndedGatherCounts: a member that has the result of a gather may fail at once, or leave, or its user may have given
// up meanwhile. Another member that looks only then has the result as well, every time.
func TestAnEndedGatherCounts(t *testing.T) {
	closing := make(chan struct{})
	close(closing)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for range 200 {
		g, first := newGathers(2), newOutcome()
		one := g.begin()
		for rank := range 2 {
			if err := g.add(one.parts(rank, "names", []byte{byte(rank)})[0]); err != nil {
				t.Fatal(err)
			}
		}
		first.set(&FailedError{Failure{Rank: 1}}, nil)
		all, err := one.wait(ctx, first, closing)
		if err != nil || !slices.Equal(slices.Concat(all...), []byte{0, 1}) {
			t.Fatalf("got %v, %v; want the bytes of both", all, err)
		}
	}
}

// TestAFailureCountsBeforeTheEnd: who leaves a group that has failed hears why, every time.
func TestAFailureCountsBeforeTheEnd(t *testing.T) {
	why := &FailedError{Failure{Rank: 1}}
	for range 200 {
		c := newControl(Config{Size: 2})
		c.first.set(why, nil)
		close(c.closing)
		if _, err := newGathers(2).begin().wait(context.Background(), c.first, c.closing); !errors.Is(err, why) {
			t.Fatalf("a gather: %v; want %v", err, why)
		}
		if err := (&carrier{c: c}).broken(1, errors.New("reset")); !errors.Is(err, why) {
			t.Fatalf("a transfer: %v; want %v", err, why)
		}
	}
}
