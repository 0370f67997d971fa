package torch_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"penstock.example/internal/must"
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
		got := to.MemoryLike(a)
		if two := to.Device().Memory().Live - one; two != one {
			t.Errorf("%s: a copy takes %d bytes, its memory %d", name, one, two)
		}
		to.CopyOn(stream.Host{}, got, a)
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
		list = append(list, c.Call("aten::stride", "int", x, d)...)
	}
	return fmt.Sprint(list)
}

// What is of streams costs nothing on a CPU: its work is done when the call returns.
func TestTheStreamOfACPU(t *testing.T) {
	d := torch.CPU(1)
	if d.NewStream() != (stream.Host{}) || d.DefaultStream() != (stream.Host{}) {
		t.Error("the stream of a CPU device is not the host's")
	}
	c := torch.NewCtx(torch.Options{Device: d})
	defer c.Close()
	a := c.Moment()
	if b := c.Moment(); b.Since(a) < 0 {
		t.Errorf("the second moment is %v after the first", b.Since(a))
	}
}

// A stream that is opened is not open already, as long as there are others, and those that were closed last
// are the next.
func TestOpenStreams(t *testing.T) {
	open, closed := torch.StreamPool(4)
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
	if got := torch.Values[float32](c.ToHost(x)); !slices.Equal(got, []float32{1, 4, 2, 5, 3, 6}) {
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
	x := torch.FromPinned(c, []float32{1, 2, 3})
	if m := d.Memory(); m.Live-before != 12 || m.Peak-before != 12 {
		t.Errorf("%d bytes, and %d at the peak; want 12", m.Live-before, m.Peak-before)
	}
	if got := torch.Values[float32](x); !slices.Equal(got, []float32{1, 2, 3}) || !x.On(d) {
		t.Errorf("%v of %v", x, got)
	}
}

// ncclEnd is a process's part: its communicators, a device, a stream for each direction, and a context
// that works on the first.
type ncclEnd struct {
	*torch.NCCL
	c       *torch.Ctx
	streams [2]stream.Stream
	over    [2]int // the communicators to and from the other end
}

// move is a move by a direction: 0 sends, 1 receives.
func (e *ncclEnd) move(direction int, x *torch.Tensor) torch.Move {
	return torch.Move{Over: e.over[direction], On: e.streams[direction], Tensor: x}
}

// finish waits for what was queued on both streams.
func (e *ncclEnd) finish() {
	for _, s := range e.streams {
		stream.End(stream.Host{}, s)
	}
}

// ncclEnds are two processes, which are two GPUs of this one, that can send each other.
func ncclEnds(t *testing.T) (ends [2]*ncclEnd) {
	t.Helper()
	if torch.CUDADevices() < 2 {
		t.Skip("NCCL needs two GPUs")
	}
	var both sync.WaitGroup
	for i := range ends {
		d := torch.CUDA(i)
		ends[i] = &ncclEnd{NCCL: &torch.NCCL{}, c: torchtest.New(t, torch.Options{Device: d}),
			streams: [2]stream.Stream{d.NewStream(), d.NewStream()}}
		ends[i].c.SetStream(ends[i].streams[0])
	}
	for from := range ends {
		id := must.Get(ends[from].ID())(t)
		for i, e := range ends {
			both.Go(func() {
				direction := 0
				if i != from {
					direction = 1
				}
				var err error
				if e.over[direction], err = e.Open(id, torch.CUDA(i), i == from); err != nil {
					t.Error(err)
				}
			})
		}
		both.Wait()
	}
	t.Cleanup(func() {
		for _, e := range ends {
			both.Go(e.Close)
		}
		both.Wait()
	})
	return ends
}

// both runs f for both ends at once.
func both(ends [2]*ncclEnd, f func(i int, e *ncclEnd)) {
	var all sync.WaitGroup
	for i, e := range ends {
		all.Go(func() { f(i, e) })
	}
	all.Wait()
}

// Two processes that both send 8 MiB and receive as much wait for nobody: queued in one group, and one
// after the other on the streams of the two directions.
func TestNCCLInBothDirections(t *testing.T) {
	for _, grouped := range []bool{true, false} {
		ends := ncclEnds(t)
		both(ends, func(i int, e *ncclEnd) {
			own, other := e.c.Fill_(e.c.Empty(torch.Float32, 2<<20), float64(i+1)),
				e.c.Zeros(torch.Float32, 2<<20)
			e.c.Synchronize()
			moves := [][]torch.Move{{e.move(0, own)}, {e.move(1, other)}}
			if grouped {
				moves = [][]torch.Move{{e.move(0, own), e.move(1, other)}}
			}
			for _, m := range moves {
				if err := e.Transfer(m); err != nil {
					t.Error(err)
					return
				}
			}
			e.finish()
			if v := torch.Values[float32](other); slices.Min(v) != float32(2-i) ||
				slices.Max(v) != float32(2-i) {
				t.Errorf("GPU %d received %v to %v, want %d", i, slices.Min(v), slices.Max(v), 2-i)
			}
		})
	}
}

// Abort, from another thread, ends a process that waits for another to join, one that waits for what
// nobody sends, and one that has less room than comes. The process can open communicators afterwards.
func TestNCCLAbort(t *testing.T) {
	ends := ncclEnds(t)
	alone, ended := &torch.NCCL{}, make(chan error)
	id := must.Get(alone.ID())(t)
	go func() {
		_, err := alone.Open(id, torch.CUDA(0), true)
		ended <- err
	}()
	time.Sleep(10 * time.Millisecond) // most often it waits by then
	alone.Abort()
	if err := <-ended; err == nil {
		t.Error("a process has joined nobody")
	}
	for name, sent := range map[string]int64{"nothing is sent": 0, "more is sent": 2 << 20,
		"less is sent": 1} {
		ends := ncclEnds(t)
		both(ends, func(i int, e *ncclEnd) {
			x := e.c.Zeros(torch.Float32, 1<<20)
			if i == 0 {
				x = e.c.Zeros(torch.Float32, sent)
			}
			e.c.Synchronize()
			if i == 1 || sent > 0 {
				if err := e.Transfer([]torch.Move{e.move(i, x)}); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			time.AfterFunc(50*time.Millisecond, e.Abort)
			e.finish() // it has ended, or was ended
			time.Sleep(100 * time.Millisecond)
			if err := e.Transfer([]torch.Move{e.move(i, x)}); !errors.Is(err, torch.ErrNCCLClosed) {
				t.Errorf("%s: a transfer over a communicator that was aborted: %v", name, err)
			}
		})
	}
	both(ends, func(i int, e *ncclEnd) {
		x := e.c.Zeros(torch.Float32, 4)
		e.c.Synchronize()
		if err := e.Transfer([]torch.Move{e.move(i, x)}); err != nil {
			t.Error(err)
		}
		e.finish()
	})
}
