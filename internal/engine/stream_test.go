package engine_test

import (
	"fmt"
	"slices"
	"testing"

	"penstock.example/internal/engine"
	"penstock.example/internal/stream"
	"penstock.example/internal/torchtest"
	"penstock.example/torch"
)

// A copy in two parts is the copy in one, with its layout and its bytes.
func TestCopyInTwoParts(t *testing.T) {
	torchtest.Check(t)
	from := torchtest.New(t, torch.Options{})
	to := torch.NewCtx(torch.Options{Device: torch.CPU(1)})
	defer to.Close()
	values := make([]float32, 4*3*5)
	for i := range values {
		values[i] = float32(i)
	}
	x := torch.From(from, values, 4, 3, 5)
	for name, a := range map[string]*torch.Tensor{
		"dense": x, "transposed": from.Transpose(x, 0, 2), "narrow": from.Narrow(x, 1, 1, 2),
		"expanded":        from.Expand(from.Narrow(x, 1, 0, 1), 4, 7, 5),
		"transposed part": from.Transpose(from.Narrow(x, 2, 1, 3), 0, 1), "number": from.Mean(x),
		"nothing": from.Narrow(x, 0, 0, 0),
	} {
		want := to.CopyHere(a)
		one := to.Device().Memory().Live
		got := engine.MemoryLike(to, a)
		if two := to.Device().Memory().Live - one; two != one {
			t.Errorf("%s: a copy takes %d bytes, its memory %d", name, one, two)
		}
		engine.CopyOn(to, stream.Host{}, got, a)
		if !slices.Equal(torch.Values[float32](got), torch.Values[float32](want)) || strides(to,
			got) != strides(to, want) {
			t.Errorf("%s: got %v with strides %s, want %v with %s", name, got, strides(to, got), want,
				strides(to, want))
		}
		to.Close()
	}
}

func strides(c *torch.Ctx, x *torch.Tensor) string {
	var list []any
	for d := range x.Shape() {
		list = append(list, c.Call("aten::stride.int", x, d)...)
	}
	return fmt.Sprint(list)
}

// What is of streams costs nothing on a CPU: its work is done when the call returns.
func TestTheStreamOfACPU(t *testing.T) {
	d := torch.CPU(1)
	if engine.NewStream(d) != (stream.Host{}) || engine.DefaultStream(d) != (stream.Host{}) {
		t.Error("the stream of a CPU device is not the host's")
	}
	c := torch.NewCtx(torch.Options{Device: d})
	defer c.Close()
	a := engine.Now(c)
	if b := engine.Now(c); b.Since(a) < 0 {
		t.Errorf("the second moment is %v after the first", b.Since(a))
	}
}

// A stream that is opened is not open already, as long as there are others, and those that were closed last
// are the next.
func TestOpenStreams(t *testing.T) {
	open, closed := engine.StreamPool(4)
	ids := map[int64]bool{}
	list := []int64{open(), open(), open()}
	closed(list[1])
	if again := open(); again != list[1] {
		t.Errorf("stream %d was closed, and %d is the next", list[1], again)
	}
	for _, id := range append(list, open()) {
		ids[id] = true
	}
	if len(ids) != 4 {
		t.Errorf("of 4 streams that are open at once %d differ", len(ids))
	}
	shared := open()
	closed(shared)
	if next := open(); next == 0 {
		t.Error("there is no fifth stream")
	}
	closed(list[0])
	closed(list[2])
	if a, b := open(), open(); a == b || !ids[a] || !ids[b] {
		t.Errorf("%d and %d are open, after %d and %d were closed", a, b, list[0], list[2])
	}
}

// What is read from the host is the tensor, whatever its layout.
func TestToHost(t *testing.T) {
	torchtest.Check(t)
	c := torchtest.New(t, torch.Options{Device: torchtest.Device(1)})
	x := c.Transpose(torch.From(c, []float32{1, 2, 3, 4, 5, 6}, 2, 3), 0, 1)
	if got := torch.Values[float32](engine.ToHost(c, x)); !slices.Equal(got, []float32{1, 4, 2, 5, 3, 6}) {
		t.Errorf("got %v", got)
	}
}

// What goes through pinned memory is the vector, on the account of the context's device alone.
func TestFromPinned(t *testing.T) {
	torchtest.Check(t)
	d := torchtest.Device(7)
	c := torchtest.New(t, torch.Options{Device: d})
	before := d.Memory().Live
	d.ResetPeak()
	x := engine.FromPinned(c, []float32{1, 2, 3})
	if m := d.Memory(); m.Live-before != 12 || m.Peak-before != 12 {
		t.Errorf("%d bytes, and %d at the peak; want 12", m.Live-before, m.Peak-before)
	}
	if got := torch.Values[float32](x); !slices.Equal(got, []float32{1, 2, 3}) || !x.On(d) {
		t.Errorf("%v of %v", x, got)
	}
}
