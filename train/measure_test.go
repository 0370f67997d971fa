package train_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock.example/group"
	"penstock.example/internal/must"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/plan"
	"penstock.example/profile"
	"penstock.example/torch"
	"penstock.example/train"
)

// fakeClock goes on by a tick whenever it is read, and by what layers take.
type fakeClock struct{ now time.Duration }

func (k *fakeClock) read() time.Duration {
	k.now += time.Microsecond
	return k.now
}

// slow is a layer that takes its time on a clock.
type slow struct {
	nn.Base
	clock *fakeClock
	time  time.Duration
}

func (s *slow) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	s.clock.now += s.time
	return c.MulScalar(x, 1)
}

func TestBalanceByTime(t *testing.T) {
	check(t)
	set, _ := dataset(t)
	clock := &fakeClock{}
	taking := func(d time.Duration) nn.Layer { return &slow{clock: clock, time: d} }
	model := nn.NewSequential(taking(0), taking(0), taking(20*time.Millisecond), taking(0),
		taking(20*time.Millisecond))
	config := train.MeasureConfig{Batch: 8, Chunks: 2, Profile: profile.Config{Repeats: 1, Clock: clock.read}}
	cut := must.Get(train.BalanceByTime(context.Background(), model, set,
		[]pipe.Checkpoint{pipe.Always, pipe.Always}, config))(t)
	counts, times := cut.Counts, cut.Times
	// The fast layer between the slow ones may go to either side.
	if counts[0]+counts[1] != 5 || counts[0] != 3 && counts[0] != 4 {
		t.Errorf("got %v", counts)
	}
	for stage, s := range times {
		if s.Forward < 0.02 || s.Recomputation != s.Forward || s.Total() < 0.04 {
			t.Errorf("stage %d is to take %+v; its slow layer takes 0.02 s, twice", stage, s)
		}
	}
	if times[1].Activations <= 0 {
		t.Errorf("the second stage receives nothing: %+v", times[1])
	}
	if cut, err := train.BalanceByTime(context.Background(), model, set,
		[]pipe.Checkpoint{pipe.Never, pipe.Always}, config); err != nil ||
		cut.Times[0].Recomputation != 0 || cut.Times[1].Recomputation != cut.Times[1].Forward {
		t.Errorf("policies of their own: %+v, %v", cut, err)
	}
	for _, wrong := range []train.MeasureConfig{{}, {Batch: 1, Chunks: -1}} {
		if cut, err := train.BalanceByTime(context.Background(), model, set, []pipe.Checkpoint{pipe.Always},
			wrong); err == nil {
			t.Errorf("%+v gives %+v", wrong, cut)
		}
	}
}

// counted is a layer that counts its forwards.
type counted struct {
	nn.Base
	runs *int
}

func (l *counted) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	*l.runs++
	return c.MulScalar(x, 1)
}

// TestMeasuredOnce: what a balance was found by is not measured again for a plan: layers are not
// timed, and only their units' bytes are read.
func TestMeasuredOnce(t *testing.T) {
	check(t)
	set, _ := dataset(t)
	planning := func(known bool, batch int) (runs int) {
		model := nn.NewSequential(nn.NewFlatten(1, -1), nn.NewLinear(16, 8), &counted{runs: &runs},
			nn.NewTanh(), nn.NewLinear(8, 3))
		defer nn.Free(model)
		loss := nn.CrossEntropy()
		cut := must.Get(train.BalanceByTime(context.Background(), model, set,
			[]pipe.Checkpoint{pipe.Optimal, pipe.Optimal}, train.MeasureConfig{Batch: 6, Chunks: 3,
				Profile: profile.Config{Repeats: 3, Loss: loss}}))(t)
		config := pipe.Config{Balance: cut.Counts, Chunks: 3, Checkpoint: pipe.Optimal}
		if known {
			config.Profile = &cut.Profile
		}
		p := must.Get(pipe.New(model, config))(t)
		defer p.Close()
		runs = 0
		optimizer := must.Get(optim.New("sgd", optim.Config{LR: 0.1}))(t)
		l := train.Loop{Pipe: p, Loss: loss, Optimizer: optimizer}
		must.Do(t, l.PlanMemory(context.Background(), set, batch))
		return runs
	}
	// A sweep runs a layer once for what it saves, three times in each of six passes, and once to
	// give its output on. Several micro-batches in flight take more of these.
	const sweep = 1 + 3*(1+5) + 1
	alone, known, other := planning(false, 6), planning(true, 6), planning(true, 9)
	if known <= 0 || alone < known+sweep {
		t.Errorf("with what is known a layer runs %d times, without %d times; want %d fewer", known, alone,
			sweep)
	}
	if other < known+sweep {
		t.Errorf("for other micro-batches a layer runs %d times, with what is known %d; want %d more",
			other, known, sweep)
	}
}

// In a group rank 0 measures, and all have its numbers and its failure.
func TestAGroupIsCutByWhatRankZeroMeasures(t *testing.T) {
	check(t)
	set, _ := dataset(t)
	const device = 5
	var runs [2]int
	cutAll := func() (cuts [2]train.Balance, errs []error) {
		errs = inProcesses(2, func(g *group.Group) (err error) {
			defer g.Close()
			model := nn.NewSequential(nn.NewFlatten(1, -1), nn.NewLinear(16, 8),
				&counted{runs: &runs[g.Rank()]}, nn.NewTanh(), nn.NewLinear(8, 3))
			cuts[g.Rank()], err = train.BalanceByTime(t.Context(), model, set,
				[]pipe.Checkpoint{pipe.ExceptLast, pipe.ExceptLast}, train.MeasureConfig{Batch: 6, Chunks: 3,
					Group: g, Profile: profile.Config{Repeats: 3, Device: torch.CPU(device)}})
			return err
		})
		return cuts, errs
	}
	cuts, errs := cutAll()
	if errs[0] != nil || errs[1] != nil || runs[0] == 0 || runs[1] != 0 {
		t.Fatalf("%v; a layer ran %d times", errs, runs)
	}
	if !slices.Equal(cuts[0].Counts, cuts[1].Counts) || cuts[0].Times[0] != cuts[1].Times[0] ||
		cuts[0].Times[1] != cuts[1].Times[1] {
		t.Errorf("rank 0 has %+v, rank 1 %+v", cuts[0], cuts[1])
	}
	torch.CPU(device).SetLimit(100)
	defer torch.CPU(device).SetLimit(0)
	if _, errs = cutAll(); !errors.Is(errs[0], torch.ErrOutOfMemory) ||
		!errors.Is(errs[1], torch.ErrOutOfMemory) || !strings.Contains(errs[1].Error(), "rank 0: ") {
		t.Errorf("got %v", errs)
	}
}

// byThreads is a layer that takes a time for each number of threads on a clock.
type byThreads struct {
	nn.Base
	clock *fakeClock
	times map[int]time.Duration
	runs  *int
}

func (l *byThreads) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	*l.runs++
	took := l.times[c.Threads()]
	if *l.runs%29 == 0 { // something else has the processor
		took *= 3
	}
	l.clock.now += took
	return c.MulScalar(x, 1)
}

// The number of threads is the largest that is clearly faster than a smaller one, or 1.
func TestThreadsByTime(t *testing.T) {
	check(t)
	set, _ := dataset(t)
	const ms = time.Millisecond
	for _, tt := range []struct {
		most      int
		times     map[int]time.Duration
		n, tried  int
		faster    float64 // about
		something bool    // is run
	}{
		{1, nil, 1, 1, 1, false},
		{2, map[int]time.Duration{1: 100 * ms, 2: 60 * ms}, 2, 2, 1.67, true},
		{2, map[int]time.Duration{1: 100 * ms, 2: 95 * ms}, 1, 2, 1.05, true},
		{2, map[int]time.Duration{1: 100 * ms, 2: 300 * ms}, 1, 2, 0.33, true},
		{4, map[int]time.Duration{1: 100 * ms, 2: 60 * ms, 4: 59 * ms}, 2, 2, 1.67, true},
		{3, map[int]time.Duration{1: 100 * ms, 2: 110 * ms, 3: 50 * ms}, 3, 3, 2, true},
	} {
		runs := 0
		layer := &byThreads{clock: &fakeClock{}, times: tt.times, runs: &runs}
		model := nn.NewSequential(nn.NewFlatten(1, -1), nn.NewLinear(16, 4), layer)
		got := must.Get(train.ThreadsByTime(t.Context(), model, set, tt.most,
			train.MeasureConfig{Batch: 8, Chunks: 2,
				Profile: profile.Config{Clock: layer.clock.read, Loss: nn.CrossEntropy()}}))(t)
		if got.N != tt.n || got.Tried != tt.tried || got.Faster < tt.faster*0.95 ||
			got.Faster > tt.faster*1.05 || runs > 0 != tt.something {
			t.Errorf("at most %d threads, %v: got %+v, want %d; %d runs", tt.most, tt.times, got, tt.n, runs)
		}
		nn.Free(model)
	}
}

// budgeted makes a loop over a network under a limit for each device, by the policy optimal, with
// Adam. The pipe is not placed.
func budgeted(t *testing.T, model *nn.Sequential, balance []int, devices []torch.Device, limits []int64,
	clip float64) *train.Loop {
	t.Helper()
	o := must.Get(optim.Adam(optim.Config{LR: 0.01}))(t)
	t.Cleanup(o.Close)
	p := must.Get(pipe.Open(model, pipe.Config{Balance: balance, Devices: devices, Chunks: 3, Seed: 7,
		Checkpoint: pipe.Optimal, Budget: limits,
		Optimizer: o}))(t)
	t.Cleanup(func() {
		p.Close()
		nn.Free(model)
	})
	return &train.Loop{Pipe: p, Optimizer: o, Loss: nn.CrossEntropy(), ClipNorm: clip}
}

// TestPlanMemory: what PlanMemory says is the least that will do trains, the second update with all
// of Adam's state included, and no device holds more; with one byte less for a stage it names that
// stage. Stages whose step needs the most and stages whose update does are in one error. Stages of one
// device are counted together. Nothing is placed meanwhile.
func TestPlanMemory(t *testing.T) {
	training, _ := dataset(t)
	for _, row := range []struct {
		reason  string
		model   func() *nn.Sequential
		balance []int
		devices []torch.Device // nil is one for each stage
		clip    float64
		batches int      // of an update
		set     []string // what sets the least of each device; "" is a layer
	}{
		{"one stage", network, []int{8}, nil, 0, 1, []string{""}},
		{"one stage, and batches that find gradients", network, []int{8}, nil, 0, 2, []string{""}},
		{"two stages, and batches that find gradients", network, []int{4, 4}, nil, 0, 2, []string{"", ""}},
		{"the step of one stage, the update of the other", func() *nn.Sequential {
			return nn.NewSequential(nn.NewFlatten(1, -1), nn.NewDropout(0.5), nn.NewLinear(16, 40),
				nn.NewTanh(), nn.NewTanh(), nn.NewTanh(), nn.NewLinear(40,
					300), nn.NewReLU(), nn.NewLinear(300, 3))
		}, []int{6, 3}, nil, 0, 1, []string{"", "the optimizer's update"}},
		{"clipping", network, []int{4, 4}, nil, 0.1, 1,
			[]string{"the optimizer's update", "the optimizer's update"}},
		{"one device, whose stages are updated together", func() *nn.Sequential {
			return nn.NewSequential(nn.NewFlatten(1, -1), nn.NewLinear(16, 80), nn.NewTanh(),
				nn.NewLinear(80, 80), nn.NewTanh(), nn.NewLinear(80, 3))
		}, []int{3, 3}, make([]torch.Device, 2), 0.1, 1, []string{"the optimizer's update"}},
	} {
		t.Run(row.reason, func(t *testing.T) {
			check(t)
			stages := len(row.set) // those that are the first of their device
			plan := func(limits ...int64) (*train.Loop, []plan.Shortage) {
				l := budgeted(t, row.model(), row.balance, row.devices, limits, row.clip)
				l.Accumulate = row.batches
				err := l.PlanMemory(context.Background(), training, batch)
				var short *plan.MemoryError
				if err != nil && !errors.As(err, &short) {
					t.Fatal(err)
				}
				for i := range stages {
					if live := torch.CPU(i).Memory().Live; live != 0 {
						t.Errorf("planning with %v bytes left %d on %v", limits, live, torch.CPU(i))
					}
				}
				if err == nil {
					return l, nil
				}
				l.Pipe.Close()
				return l, short.Stages
			}
			_, short := plan(slices.Repeat([]int64{1}, stages)...)
			var least []int64
			for i, s := range short {
				if s.Stage != i || s.Limit != 1 || len(s.Others) != len(row.balance)-stages ||
					(row.set[i] == "") != (s.SetBy != "the optimizer's update") {
					t.Errorf("shortage %d is %+v", i, s)
				}
				least = append(least, s.Least)
			}
			if len(least) != stages {
				t.Fatalf("short are %v, want all of %d stages", short, stages)
			}
			for i := range least {
				less := slices.Clone(least)
				less[i]--
				if _, short := plan(less...); len(short) != 1 || short[0].Stage != i ||
					short[0].Least != least[i] {
					t.Errorf("with %v bytes: short are %v", less, short)
				}
			}
			l, short := plan(least...)
			if short != nil {
				t.Fatalf("with %v bytes: short are %v", least, short)
			}
			must.Do(t, l.Pipe.Place())
			l.Loader, l.Steps = loader(t), 3
			if row.batches > 1 {
				l.Steps = 2 // later batches are short and measured anew
			}
			l.OnStep = []train.Hook{func(s train.StepInfo) error {
				for i, peak := range s.Peak {
					if peak > least[i] || s.Step > 1 && row.set[i] != "" && peak != least[i] {
						t.Errorf("step %d: %d bytes on %v, planned at most %d", s.Step, peak, torch.CPU(i),
							least[i])
					}
				}
				return nil
			}}
			if _, err := l.Run(context.Background()); err != nil {
				t.Errorf("with %v bytes: %v", least, err)
			}
		})
	}
}
