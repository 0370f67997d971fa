package pipe_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock.example/group"
	"penstock.example/internal/draws"
	"penstock.example/internal/link"
	"penstock.example/internal/linktest"
	"penstock.example/internal/stream"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// reached makes devices GPUs, by their names: devices of one name are one GPU, and those without are
// none. asked counts the processes that have ways.
func reached(fabric *linktest.Fabric, name func(torch.Device) string, asked *atomic.Int32) func(*pipe.Pipe,
	*group.Group) {
	return func(p *pipe.Pipe, g *group.Group) {
		streams := uint64(0)
		p.SetGPUs(name, func() link.Communicators {
			asked.Add(1)
			return fabric.Communicators()
		}, func(torch.Device) stream.Stream {
			streams++
			return linktest.NewStream(uint64(1000*g.Rank()) + streams)
		})
	}
}

// Results are the same to the bit in any number of processes, whichever of them reach each other's
// devices directly.
func TestTransparencyOfDirectWays(t *testing.T) {
	torchtest.Check(t)
	draws.Checks(t, 15, 200)
	var ways atomic.Int32
	drawn := 0
	rapid.Check(t, func(t *rapid.T) {
		drawn++
		live := torch.LiveTensors()
		d := drawRun(t, 2)
		processes := rapid.IntRange(2, d.devices()).Draw(t, "processes")
		want := d.problem().apart(t, d.config(), 1)
		q := d.problem()
		if d.Order.Name != "" { // any other order may receive in another order than it sends
			names := rapid.SliceOfN(rapid.SampledFrom([]string{"", "a", "b", "c", "d"}), 8, 8).Draw(t, "GPUs")
			q.reach = reached(&linktest.Fabric{},
				func(d torch.Device) string { return names[d.Index%len(names)] }, &ways)
		}
		if s := want.differs(q.apart(t, d.config(), processes)); s != "" {
			t.Fatalf("%s differs from that of one process", s)
		}
		if n := torch.LiveTensors() - live; n != 0 {
			t.Fatalf("%d tensors were not freed:\n%s", n, strings.Join(torch.Leaks(), "\n"))
		}
	})
	if ways.Load() == 0 && drawn >= 15 {
		t.Error("no process had a way")
	}
}

// Where a send is lost between GPUs, nobody notices but the one that waits. When the group fails, as
// it does when a process is stopped or gone, or somebody gives up, all end with an error that says so.
func TestDirectWaysEndWithTheGroup(t *testing.T) {
	torchtest.Check(t)
	for _, lost := range []bool{true, false} {
		var ways atomic.Int32
		fabric := &linktest.Fabric{}
		if lost {
			fabric.Drop = func(move int) bool { return move > 8 }
		}
		begun := time.Now()
		q := problem{model: func() *nn.Sequential { return tied(true, false) }, loss: nn.CrossEntropy(),
			input: classes(7, 6), target: classes(7, 6),
			reach: reached(fabric, torch.Device.String, &ways)}
		_, errs := each(2, func(g *group.Group) (struct{}, error) {
			return struct{}{}, q.on(g, pipe.Config{Balance: []int{2, 3}, Chunks: 4, Devices: cpus(2)},
				func(m process) (err error) {
					if g.Rank() == 1 && !lost { // gone: it makes no step
						time.AfterFunc(50*time.Millisecond, func() { g.Close() })
						<-g.Failed()
						return g.Err()
					}
					ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
					defer cancel()
					for step := 0; err == nil && step < 100; step++ {
						err = m.train(ctx, step)
					}
					return err
				})
		})
		for rank, err := range errs {
			var failed *group.FailedError
			var gone *group.LostError
			if err == nil || lost && !errors.Is(err, context.DeadlineExceeded) &&
				!errors.As(err, &failed) || !lost && !errors.As(err, &gone) {
				t.Errorf("lost %v: process %d ended with %v", lost, rank, err)
			}
		}
		if took := time.Since(begun); took >= linktest.Patience || ways.Load() != 2 {
			t.Errorf("lost %v: it took %v, and %d processes had ways: %s", lost, took, ways.Load(),
				fmt.Sprint(errs))
		}
	}
}

// Processes may name their devices alike: that is a device of each. Stages are then shared out in order.
func TestDevicesOfOneName(t *testing.T) {
	torchtest.Check(t)
	model := func() *nn.Sequential {
		return nn.NewSequential(nn.NewLinear(2, 3), nn.NewTanh(), nn.NewTanh(), nn.NewLinear(3, 1))
	}
	cpu, gpu := torch.CPU(0), torch.CUDA(0)
	for _, row := range []struct {
		devices []torch.Device
		size    int
		ranks   []int // given
		want    []int
		names   string
	}{
		{[]torch.Device{cpu, cpu, cpu, cpu}, 2, nil, []int{0, 0, 1, 1}, "rank:0/cpu:0 rank:1/cpu:0"},
		{[]torch.Device{cpu, torch.CPU(1), cpu, torch.CPU(1)}, 2, nil, []int{0, 1, 0, 1}, "cpu:0 cpu:1"},
		{[]torch.Device{cpu, torch.CPU(1), cpu, torch.CPU(1)}, 2, []int{0, 0, 1, 1}, []int{0, 0, 1, 1},
			"rank:0/cpu:0 rank:0/cpu:1 rank:1/cpu:0 rank:1/cpu:1"},
		{[]torch.Device{cpu, cpu, cpu, cpu}, 2, []int{0, 1, 0, 1}, []int{0, 1, 0, 1},
			"rank:0/cpu:0 rank:1/cpu:0"},
		{[]torch.Device{cpu, cpu, gpu, gpu}, 2, nil, []int{0, 0, 1, 1}, "cpu:0 cuda:0"},
	} {
		cfg := pipe.Config{Balance: []int{1, 1, 1, 1}, Devices: row.devices, Ranks: row.ranks,
			Group: group.Local(row.size)[0]}
		p, err := pipe.Open(model(), cfg)
		if err != nil {
			t.Fatalf("%+v: %v", row, err)
		}
		got := p.Config()
		if names := strings.Join(got.DeviceNames(), " "); !slices.Equal(got.Ranks, row.want) ||
			names != row.names {
			t.Errorf("%+v: ranks %v, names %s", row, got.Ranks, names)
		}
		var mine []torch.Device
		for i, s := range p.Stages() {
			if s.Here {
				mine = append(mine, s.Device)
			}
			if s.Here != (got.Ranks[i] == 0) || s.Here && s.Device != row.devices[i] ||
				s.Device.Usable() != nil {
				t.Errorf("%+v: stage %d is here %v and on %v", row, i, s.Here, s.Device)
			}
		}
		for i, s := range p.Stages() { // what stands here for a device of another process is none of this one
			if !s.Here && slices.Contains(mine, s.Device) || p.DeviceHere(got.Workers()[i]) != s.Here {
				t.Errorf("%+v: stage %d of another process is on %v", row, i, s.Device)
			}
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	if gpu.Usable() != nil {
		cfg := pipe.Config{Balance: []int{2, 2}, Devices: []torch.Device{cpu, gpu}, Group: group.Local(2)[1]}
		if err := cfg.Check(model()); err == nil || !strings.Contains(err.Error(), "here cannot use cuda:0") {
			t.Errorf("got %v", err)
		}
	}
}

// wire is a link like one between two processes. A parcel on its way is bytes. Its tensors are freed
// before Send returns, and the receiver gets others, made from the bytes on its own device. A stage
// that used another's tensors would find them freed.
type wire struct {
	meet   bool  // Send waits until the receiver is at Receive
	delays bool  // parcels arrive after Send has returned, in any order
	worker []int // by stage; a worker does not meet itself

	mu         sync.Mutex
	arrived    map[schedule.Action]packed
	posted     map[schedule.Action]bool // by send: the receiver is at Receive
	failed     func() bool              // what waits ends then
	deliveries sync.WaitGroup
}

// linkMaker makes the link of a mini-batch; see pipe.Pipe.SetLink.
type linkMaker = func(worker []int, failed func() bool) link.Link

func wires(meet, delays bool) linkMaker {
	return func(worker []int, failed func() bool) link.Link {
		return &wire{meet: meet, delays: delays, worker: worker, failed: failed,
			arrived: map[schedule.Action]packed{}, posted: map[schedule.Action]bool{}}
	}
}

func (w *wire) Meets(send schedule.Action) bool {
	return w.meet && w.worker[send.Stage] != w.worker[send.Peer]
}

func (w *wire) Send(c *torch.Ctx, send schedule.Action, p link.Parcel) error {
	if p.Ready != nil {
		p.Ready.Synchronize()
	}
	parcel := pack(c, p)
	p.Free()
	arrive := func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.arrived[send] = parcel
	}
	if w.delays {
		w.deliveries.Add(1)
		go func() {
			defer w.deliveries.Done()
			for range torch.Mix(uint64(send.MicroBatch), uint64(send.Stage)) % 7 {
				runtime.Gosched()
			}
			arrive()
		}()
	} else {
		arrive()
	}
	return w.wait(func() bool { return !w.Meets(send) || w.posted[send] })
}

func (w *wire) Receive(c *torch.Ctx, send schedule.Action) (link.Parcel, error) {
	w.mu.Lock()
	w.posted[send] = true
	w.mu.Unlock()
	var parcel packed
	err := w.wait(func() (ok bool) { parcel, ok = w.arrived[send]; return ok })
	if err != nil {
		return link.Parcel{}, err
	}
	return parcel.unpack(c), nil
}

func (w *wire) wait(until func() bool) error {
	for ; !w.failed(); time.Sleep(50 * time.Microsecond) {
		w.mu.Lock()
		ended := until()
		w.mu.Unlock()
		if ended {
			return nil
		}
	}
	return errors.New("the run has failed on another stage")
}

func (w *wire) Expect(*torch.Ctx, schedule.Action) error { return nil }

func (w *wire) Settle(schedule.Action) error { return nil }

func (w *wire) Free() { w.deliveries.Wait() }

// packed is a parcel as bytes.
type packed [][]packedValue

type packedValue struct {
	absent, wants  bool
	same           int // index of the same tensor earlier in the list, or -1
	dtype          torch.DType
	shape, strides []int64
	bytes          []byte
}

func pack(c *torch.Ctx, p link.Parcel) (out packed) {
	for _, list := range p.Lists {
		values := make([]packedValue, len(list))
		for i, v := range list {
			at := &values[i]
			at.absent, at.wants = v.Tensor == nil, v.Wants
			at.same = slices.IndexFunc(list[:i], func(e link.Value) bool { return e.Tensor == v.Tensor })
			if at.absent || at.same >= 0 {
				continue
			}
			at.dtype, at.shape, at.bytes = v.Tensor.DType(), v.Tensor.Shape(), torch.Bytes(v.Tensor)
			for d := range at.shape {
				at.strides = append(at.strides, c.Call("aten::stride.int", v.Tensor, d)[0].(int64))
			}
		}
		out = append(out, values)
	}
	return out
}

func (p packed) unpack(c *torch.Ctx) link.Parcel {
	out := link.Parcel{Device: c.Device()}
	for _, values := range p {
		list := make([]link.Value, len(values))
		for i, v := range values {
			switch list[i].Wants = v.wants; {
			case v.absent:
			case v.same >= 0:
				list[i].Tensor = list[v.same].Tensor
			default:
				list[i].Tensor = c.Keep(v.unpack(c))
			}
		}
		out.Add(list)
	}
	return out
}

// unpack makes a tensor with the strides that it had. What was expanded is expanded again.
func (v packedValue) unpack(c *torch.Ctx) *torch.Tensor {
	from, shape := torch.FromBytes(c, v.bytes, v.dtype, v.shape), slices.Clone(v.shape)
	for d, stride := range v.strides {
		if stride == 0 && shape[d] > 1 {
			from, shape[d] = c.Narrow(from, int64(d), 0, 1), 1
		}
	}
	out := c.Call("aten::empty_strided", shape, v.strides, v.dtype)[0].(*torch.Tensor)
	c.Copy_(out, from)
	return c.Call("aten::expand", out, v.shape)[0].(*torch.Tensor)
}
