package train_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"penstock.example/group"
	"penstock.example/internal/must"
	"penstock.example/nn"
	"penstock.example/profile"
	"penstock.example/torch"
	"penstock.example/train"
)

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
		got := must.Get(train.ThreadsByTime(t.Context(), model, set, train.ThreadsConfig{Most: tt.most, Batch: 8, Chunks: 2, Loss: nn.CrossEntropy(), Profile: profile.Config{Clock: layer.clock.read}}))(t)
		if got.N != tt.n || got.Tried != tt.tried || got.Faster < tt.faster*0.95 || got.Faster > tt.faster*1.05 || runs > 0 != tt.something {
			t.Errorf("at most %d threads, %v: got %+v, want %d; %d runs", tt.most, tt.times, got, tt.n, runs)
		}
		nn.Free(model)
	}
}

// It takes some seconds also where one thread takes many times as long as all of them, and where a layer
// takes long with any number it takes three rounds of it.
func TestTimeOfThreads(t *testing.T) {
	check(t)
	set, _ := dataset(t)
	shared := map[int]time.Duration{}
	for n := 1; n <= 8; n *= 2 {
		shared[n] = 50 * time.Millisecond / time.Duration(n)
	}
	for _, tt := range []struct {
		name   string
		layers int
		times  map[int]time.Duration
		most   int
		n      int
		longer time.Duration
	}{
		{"eight threads share layers out", 64, shared, 8, 8, 4200 * time.Millisecond},
		{"a layer takes a second", 1, map[int]time.Duration{1: time.Second, 2: time.Second}, 2, 1, 15 * time.Second},
	} {
		runs := 0
		clock := &fakeClock{}
		layers := []nn.Layer{nn.NewFlatten(1, -1), nn.NewLinear(16, 4)}
		for range tt.layers {
			layers = append(layers, &byThreads{clock: clock, times: tt.times, runs: &runs})
		}
		model := nn.NewSequential(layers...)
		got := must.Get(train.ThreadsByTime(t.Context(), model, set, train.ThreadsConfig{Most: tt.most, Batch: 8, Chunks: 2, Loss: nn.CrossEntropy(), Profile: profile.Config{Clock: clock.read}}))(t)
		if got.N != tt.n || clock.now > tt.longer {
			t.Errorf("%s: %+v after %v; want %d within %v", tt.name, got, clock.now, tt.n, tt.longer)
		}
		nn.Free(model)
	}
}

// In a group rank 0 measures, and all have its number. Nothing of the model changes.
func TestThreadsOfAGroup(t *testing.T) {
	check(t)
	set, _ := dataset(t)
	members := group.Local(2)
	var runs [2]int
	var got [2]train.Threads
	var wg sync.WaitGroup
	for rank, g := range members {
		wg.Go(func() {
			layer := &byThreads{clock: &fakeClock{}, times: map[int]time.Duration{1: time.Second, 2: time.Second / 2}, runs: &runs[rank]}
			model := nn.NewSequential(nn.NewFlatten(1, -1), nn.NewLinear(16, 4), layer)
			var err error
			if got[rank], err = train.ThreadsByTime(t.Context(), model, set, train.ThreadsConfig{Most: 2, Batch: 8, Group: g, Profile: profile.Config{Clock: layer.clock.read, Device: torch.CPU(5)}}); err != nil {
				t.Error(err)
			}
			for _, p := range nn.State(model) {
				if p.Exists() {
					t.Errorf("rank %d: %s exists", rank, p.Name)
				}
			}
		})
	}
	wg.Wait()
	for _, g := range members {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}
	if runs[0] == 0 || runs[1] != 0 || got[0] != got[1] || got[0].N != 2 {
		t.Errorf("%v runs, %+v", runs, got)
	}
}

// What fails while it is measured, and the end of a context, are errors.
func TestThreadsFail(t *testing.T) {
	check(t)
	set, _ := dataset(t)
	ended, end := context.WithCancel(t.Context())
	end()
	model := nn.NewSequential(nn.NewFlatten(1, -1), nn.NewLinear(16, 4))
	if got, err := train.ThreadsByTime(ended, model, set, train.ThreadsConfig{Most: 2, Batch: 8}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %+v, %v", got, err)
	}
	var at *profile.Error
	wrong := nn.NewSequential().Add("first", nn.NewFlatten(1, -1)).Add("second", nn.NewLinear(17, 4))
	if got, err := train.ThreadsByTime(t.Context(), wrong, set, train.ThreadsConfig{Most: 2, Batch: 8}); !errors.As(err, &at) || at.Layer != "second" {
		t.Errorf("got %+v, %v", got, err)
	}
}
