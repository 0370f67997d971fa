package nn_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/torch"
)

// A mini-batch that fails is as if it had not been.
func TestDeferredForgetsAFailedMiniBatch(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	b, untouched := batchNorm(c, 2, nn.BatchNormConfig{}), batchNorm(c, 2, nn.BatchNormConfig{})
	defer nn.Free(b)
	defer nn.Free(untouched)
	x := c.Normal_(c.Empty(torch.Float32, 8, channels), 1, 2)
	d := nn.NewDeferred()
	ctx := nn.NewCtx(c, nn.Config{Training: true, Deferred: d})
	b.Forward(ctx, c.Narrow(x, 0, 0, 4))
	if err := torch.Try(func() { b.Forward(ctx, c.Narrow(x, 0, 4, 1)) }); err == nil {
		t.Fatal("one row has no variance")
	}
	d.Free()
	if !slices.Equal(running(b), running(untouched)) {
		t.Errorf("the running statistics moved to %v", running(b))
	}
	inParts(c, d, b, x, []int64{4, 4})
	inParts(c, nn.NewDeferred(), untouched, x, []int64{4, 4})
	if !slices.Equal(running(b), running(untouched)) {
		t.Errorf("the next mini-batch gave %v, want %v", running(b), running(untouched))
	}
}

func TestCommitWithoutMemoryMovesNothing(t *testing.T) {
	a := newAccount(t, false)
	first, second := batchNorm(a.Ctx, 2, nn.BatchNormConfig{}), batchNorm(a.Ctx, 2, nn.BatchNormConfig{})
	defer nn.Free(first)
	defer nn.Free(second)
	d := nn.NewDeferred()
	ctx := nn.NewCtx(a.Ctx, nn.Config{Training: true, Deferred: d})
	x := a.Normal_(a.Empty(torch.Float32, 8, channels), 1, 2)
	first.Forward(ctx, x)
	second.Forward(ctx, x)
	before := slices.Concat(running(first), running(second))
	failures := 0
	a.start()
	for room := int64(4); ; room += 4 {
		a.Device().SetLimit(a.Device().Memory().Live + room)
		err := torch.Try(func() { d.Commit(ctx) })
		a.Device().SetLimit(0)
		if err == nil {
			break
		}
		if failures++; !errors.Is(err, torch.ErrOutOfMemory) || !slices.Equal(slices.Concat(running(first), running(second)), before) {
			t.Fatalf("with %d bytes to spare: %v, and the running statistics are %v", room, err, slices.Concat(running(first), running(second)))
		}
		if a.used() != 0 {
			t.Fatalf("%d bytes are left", a.used())
		}
	}
	if failures < 4 {
		t.Errorf("Commit failed %d times only", failures)
	}
	if !slices.Equal(running(first), running(second)) || slices.Equal(running(first), before[:len(before)/2]) {
		t.Errorf("in the end the running statistics are %v and %v", running(first), running(second))
	}
}

// Without its running statistics libtorch would normalise any number of channels.
func TestDeferredRefusesOtherChannels(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	b := batchNorm(c, 2, nn.BatchNormConfig{NoAffine: true})
	defer nn.Free(b)
	for _, n := range []int64{1, channels + 1} {
		d := nn.NewDeferred()
		err := torch.Try(func() {
			b.Forward(nn.NewCtx(c, nn.Config{Training: true, Deferred: d}), c.Ones(torch.Float32, 4, n))
		})
		if want := fmt.Sprintf("aten::batch_norm(float32[4,%d]): expected an input of 3 channels, got %d", n, n); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		d.Free()
	}
}
