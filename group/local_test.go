package group_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand"
	"strings"
	"sync"
	"testing"
	"time"

	"penstock.example/group"
	"penstock.example/internal/link"
	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/torch"
)

// each runs f for every member at the same time and returns the errors by rank.
func each(all []*group.Group, f func(g *group.Group) error) []error {
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, g := range all {
		wg.Go(func() { errs[i] = f(g) })
	}
	wg.Wait()
	return errs
}

func none(t *testing.T, errs []error) {
	t.Helper()
	for rank, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

// gatherAll gathers bytes of many lengths, of each rank another.
func gatherAll(g *group.Group) error {
	for round := range 20 {
		each := func(rank int) []byte {
			return bytes.Repeat([]byte{byte(rank), byte(round)}, round*round*round*rank*10)
		}
		got, err := group.Meet(context.Background(), g, fmt.Sprint("round ", round), each(g.Rank()), nil)
		if err != nil {
			return err
		}
		for rank, b := range got {
			if !bytes.Equal(b, each(rank)) {
				return fmt.Errorf("round %d: rank %d gave %d bytes", round, rank, len(b))
			}
		}
	}
	return nil
}

func TestGatherOfDifferentThingsNamesTheRanks(t *testing.T) {
	torchtest.Check(t)
	for rank, err := range each(group.Local(3), func(g *group.Group) error {
		_, err := group.Meet(context.Background(), g, []string{"models", "plans", "models"}[g.Rank()], 0, nil)
		return err
	}) {
		if err == nil || !strings.Contains(err.Error(),
			`rank 0 at "models", rank 1 at "plans", rank 2 at "models"`) {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

func TestGatherGivenUpFailsTheGroup(t *testing.T) {
	torchtest.Check(t)
	all := group.Local(2)
	ctx, cancel := context.WithCancel(context.Background())
	go cancel()
	if _, err := group.Meet(ctx, all[1], "models", 0, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	_, err := group.Meet(context.Background(), all[0], "models", 0, nil)
	if want := "rank 1 failed: meeting for models: context canceled"; err == nil || err.Error() != want {
		t.Errorf("got %v; want %s", err, want)
	}
}

// exchange sends many tensors both ways at once and receives them in another order. Half of them
// are transposed, so that their memory is in another order than their elements.
func exchange(g *group.Group) error {
	const tags = 50
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	r := rand.New(rand.NewSource(int64(g.Rank())))
	var works []link.Work
	var check []func() error
	for peer := range g.Size() {
		if peer == g.Rank() {
			continue
		}
		for _, tag := range r.Perm(tags) {
			x := numbers(c, g.Rank(), peer, tag)
			w, err := g.Send(x, peer, tag)
			if err != nil {
				return err
			}
			works = append(works, w)
		}
		for _, tag := range r.Perm(tags) {
			want := numbers(c, peer, g.Rank(), tag)
			y := c.Op("aten::empty_like", want)
			w, err := g.Receive(y, peer, tag)
			if err != nil {
				return err
			}
			works = append(works, w)
			check = append(check, func() error {
				if !bytes.Equal(torch.Bytes(y), torch.Bytes(want)) {
					return fmt.Errorf("tag %d from rank %d: %v", tag, peer, torch.Values[float32](y))
				}
				return nil
			})
		}
	}
	for _, w := range works {
		if err := w.Wait(); err != nil {
			return err
		}
	}
	for _, f := range check {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// numbers is what a rank sends another under a tag: tag+1 rows of 3, transposed where the tag is odd.
func numbers(c *torch.Ctx, from, to, tag int) *torch.Tensor {
	x := make([]float32, 3*(tag+1))
	for i := range x {
		x[i] = float32(i + 1000*(from+10*to) + 100000*tag)
	}
	t := torch.From(c, x, int64(tag+1), 3)
	if tag%2 == 1 {
		t = c.Transpose(t, 0, 1)
	}
	return t
}

func TestSendsMeetReceives(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	all := group.Local(2)
	x, y := torch.From(c, []float32{1, 2}, 2), torch.From(c, []float32{0, 0}, 2)
	send := must.Get(all[0].Send(x, 1, 7))(t)
	other := must.Get(all[1].Receive(y, 0, 8))(t)
	sent, unanswered := ending(send), ending(other)
	select {
	case <-sent:
		t.Error("a send has ended before it is received")
	case <-time.After(10 * time.Millisecond):
	}
	receive := must.Get(all[1].Receive(y, 0, 7))(t)
	if err := cmp.Or(<-sent, receive.Wait()); err != nil {
		t.Error(err)
	}
	if got := torch.Values[float32](y); got[0] != 1 || got[1] != 2 {
		t.Errorf("got %v", got)
	}
	all[0].Fail(group.FailedError{Message: "the end"})
	if <-unanswered == nil {
		t.Error("a receive under another tag has ended well")
	}
}

// ending gets the error of a work when it has ended.
func ending(w link.Work) <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- w.Wait() }()
	return ended
}

// TestAFailureEndsWhatWaits has a member fail while others wait in everything.
func TestAFailureEndsWhatWaits(t *testing.T) {
	torchtest.Check(t)
	const want = "rank 2 failed: stage 2, micro-batch 5, backward: out of memory"
	for name, all := range map[string][]*group.Group{"local": group.Local(3),
		"joined": inProcess(t, config(t, 3))} {
		for rank, err := range each(all, func(g *group.Group) error {
			c := torch.NewCtx(torch.Options{})
			defer c.Close()
			x, y := c.Zeros(torch.Float32, 1<<20), c.Zeros(torch.Float32, 1<<20)
			if g.Rank() == 2 {
				must.Get(group.Meet(context.Background(), g, "begun", 0, nil))(t)
				g.Fail(group.FailedError{Rank: 9, Stage: 2, MicroBatch: 5, Action: "backward",
					Message: "out of memory"})
				g.Fail(group.FailedError{Message: "later"})
				return g.Err()
			}
			send := must.Get(g.Send(x, 1-g.Rank(), 1))(t)
			receive := must.Get(g.Receive(y, 2, 2))(t)
			must.Get(g.Receive(y, 2, 3))(t) // is left to Close
			must.Get(group.Meet(context.Background(), g, "begun", 0, nil))(t)
			_, gathered := group.Meet(context.Background(), g, "models", 0, nil)
			_, gatheredLater := group.Meet(context.Background(), g, "plans", 0, nil)
			_, sentLater := g.Send(x, 2, 4)
			for i, err := range []error{send.Wait(), receive.Wait(), gathered, gatheredLater, sentLater} {
				if err == nil || err.Error() != want {
					return fmt.Errorf("call %d: got %v; want %s", i, err, want)
				}
			}
			<-g.Failed()
			return g.Err()
		}) {
			var failed *group.FailedError
			if !errors.As(err, &failed) || err.Error() != want || failed.Rank != 2 {
				t.Errorf("%s, rank %d: got %v; want %s", name, rank, err, want)
			}
		}
		none(t, each(all, func(g *group.Group) error { return g.Close() }))
	}
}

func TestWhoHasLeftIsLost(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	x := torch.From(c, []float32{1}, 1)
	for name, call := range map[string]func(g *group.Group) error{
		"gather": func(g *group.Group) error {
			_, err := group.Meet(context.Background(), g, "models", 0, nil)
			return err
		},
		"send":    func(g *group.Group) error { _, err := g.Send(x, 0, 1); return err },
		"receive": func(g *group.Group) error { _, err := g.Receive(x, 0, 1); return err },
	} {
		all := group.Local(2)
		if err := all[0].Close(); err != nil {
			t.Error(err)
		}
		if all[1].Err() != nil {
			t.Errorf("the end is a failure: %v", all[1].Err())
		}
		var lost *group.LostError
		if err := call(all[1]); !errors.As(err, &lost) || lost.Rank != 0 {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestOnlyDenseTensorsMove(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	x := torch.From(c, []float32{1, 2, 3, 4}, 2, 2)
	expanded := c.Call("aten::expand", x, []int64{3, 2, 2}, false)[0].(*torch.Tensor)
	for _, y := range []*torch.Tensor{c.Narrow(x, 1, 0, 1), expanded} {
		if _, err := group.Local(2)[0].Send(y, 1, 0); err == nil ||
			!strings.Contains(err.Error(), "the tensor is not dense") {
			t.Errorf("%v: got %v", y, err)
		}
	}
}

// TestNobodyGathersAfterClose: a member that has left gives no part to a gather, and the others find
// that it has left.
func TestNobodyGathersAfterClose(t *testing.T) {
	torchtest.Check(t)
	for name, all := range map[string][]*group.Group{"local": group.Local(2),
		"joined": inProcess(t, config(t, 2))} {
		var wg sync.WaitGroup
		wg.Go(func() {
			_ = all[1].Close()
			if _, err := group.Meet(context.Background(), all[1], "last words", 0, nil); err == nil {
				t.Errorf("%s: rank 1 gathers after Close", name)
			}
		})
		if name == "local" {
			wg.Wait() // where Close does not wait for the others
		}
		var lost *group.LostError
		if _, err := group.Meet(context.Background(), all[0], "last words", 0, nil); !errors.As(err, &lost) ||
			lost.Rank != 1 {
			t.Errorf("%s: rank 0: %v; want rank 1 lost", name, err)
		}
		_ = all[0].Close()
		wg.Wait()
	}
}

// TestAFailureIsToldOnce: what has failed before a meeting may be the failure of the group, by which
// the meeting fails as well. Both are given where they differ.
func TestAFailureIsToldOnce(t *testing.T) {
	all := group.Local(2)
	all[1].Fail(group.FailedError{Stage: -1, MicroBatch: -1, Message: "out of memory"})
	meet := func(g *group.Group, failed error) error {
		_, err := group.Meet(t.Context(), g, "saved", 0, failed)
		return err
	}
	saving := fmt.Errorf("saving: %w", all[0].Err())
	if err := meet(all[0], saving); err != saving {
		t.Errorf("got %v; want %v", err, saving)
	}
	full := errors.New("the disk is full")
	if err := meet(all[0], full); !errors.Is(err, full) ||
		!errors.Is(err, all[0].Err()) {
		t.Errorf("got %v; want both failures", err)
	}
}

// Three members say what they have, and all know what each says.
func ExampleMeet() {
	var all sync.WaitGroup
	for _, g := range group.Local(3) {
		all.Go(func() {
			defer g.Close()
			layers, err := group.Meet(context.Background(), g, "the layers of each", 10*(g.Rank()+1), nil)
			if g.Rank() == 0 {
				fmt.Println(layers, err)
			}
		})
	}
	all.Wait()
	// Output:
	// [10 20 30] <nil>
}

// TestMembersExchangeAndLeave: nobody waits for the silence, and the port is free afterwards.
func TestMembersExchangeAndLeave(t *testing.T) {
	torchtest.Check(t)
	cfg := config(t, 3)
	cfg.Silence = time.Minute
	for _, all := range [][]*group.Group{group.Local(4), inProcess(t, cfg)} {
		none(t, each(all, func(g *group.Group) error { return cmp.Or(exchange(g), gatherAll(g)) }))
		began := time.Now()
		none(t, each(all, func(g *group.Group) error { return cmp.Or(g.Close(), g.Err()) }))
		if d := time.Since(began); d >= cfg.Silence {
			t.Errorf("closing took %v: somebody was waited for in vain", d)
		}
	}
	none(t, each(inProcess(t, cfg), func(g *group.Group) error { return g.Close() }))
}
