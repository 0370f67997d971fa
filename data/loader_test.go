package data_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock.example/data"
	_ "penstock.example/internal/draws" // sets the number of draws
	"penstock.example/internal/must"
)

// counting is n samples that are their own index. It can be slow, and fail.
type counting struct {
	n     int
	slow  time.Duration
	fails error
	from  int // the sample from which on it fails
	fills atomic.Int64
}

func (c *counting) Len() int { return c.n }

func (c *counting) Info() data.Info {
	return data.Info{Name: "counting", Classes: c.n, Input: data.Spec{Kind: data.Int64},
		Target: data.Spec{Kind: data.Int64}}
}

func (c *counting) Fill(batch *data.Batch, indices []int) error {
	time.Sleep(c.slow)
	c.fills.Add(1)
	batch.Rows = len(indices)
	batch.Input.Reset(len(indices), c.Info().Input)
	batch.Target.Reset(len(indices), c.Info().Target)
	for row, index := range indices {
		if c.fails != nil && index >= c.from {
			return fmt.Errorf("sample %d: %w", index, c.fails)
		}
		batch.Input.Int64[row], batch.Target.Int64[row] = int64(index), int64(index)
	}
	return nil
}

// newLoader returns a loader that is closed when the test ends.
func newLoader(t *testing.T, set data.Dataset, c data.LoaderConfig) *data.Loader {
	t.Helper()
	loader := must.Get(data.NewLoader(set, c))(t)
	t.Cleanup(loader.Close)
	return loader
}

// deliver returns the next n batches, over the ends of epochs, or if n is -1 those up to the end of the
// epoch.
func deliver(t *testing.T, set data.Dataset, c data.LoaderConfig, n int) []data.Batch {
	t.Helper()
	loader := newLoader(t, set, c)
	defer loader.Close()
	var batches []data.Batch
	for len(batches) != n {
		batch, err := loader.Next(t.Context())
		if err == io.EOF && n == -1 {
			return batches
		}
		if err == io.EOF {
			continue
		}
		must.Do(t, err)
		batches = append(batches, batch)
	}
	return batches
}

// TestEpochs walks through two epochs call by call.
func TestEpochs(t *testing.T) {
	tests := []struct {
		reason string
		config data.LoaderConfig
		epoch  [][]int64
	}{
		{"a short last batch", data.LoaderConfig{BatchSize: 2}, [][]int64{{0, 1}, {2, 3}, {4}}},
		{"batches that divide", data.LoaderConfig{BatchSize: 5}, [][]int64{{0, 1, 2, 3, 4}}},
		{"a batch larger than the set", data.LoaderConfig{BatchSize: 9}, [][]int64{{0, 1, 2, 3, 4}}},
	}
	for _, test := range tests {
		for prefetch := range 4 {
			t.Run(fmt.Sprint(test.reason, ", prefetch ", prefetch), func(t *testing.T) {
				test.config.Prefetch = prefetch
				loader := newLoader(t, &counting{n: 5}, test.config)
				if loader.Batches() != len(test.epoch) {
					t.Errorf("Batches() = %d, want %d", loader.Batches(), len(test.epoch))
				}
				for epoch := range 2 {
					for i, want := range test.epoch {
						if got := loader.Position(); got != (data.Position{Epoch: epoch, Batch: i}) {
							t.Errorf("Position() = %v, want {%d %d}", got, epoch, i)
						}
						batch := must.Get(loader.Next(t.Context()))(t)
						if !slices.Equal(batch.Input.Int64, want) || batch.Rows != len(want) {
							t.Errorf("epoch %d, batch %d is %v, want %v", epoch, i, batch.Input.Int64, want)
						}
					}
					if _, err := loader.Next(t.Context()); err != io.EOF {
						t.Errorf("at the end of epoch %d: error %v, want io.EOF", epoch, err)
					}
				}
			})
		}
	}
}

// TestResume: from any position, at any prefetch depth, a new Loader goes on as the old one does, the
// ends of epochs included.
func TestResume(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		set := &counting{n: rapid.IntRange(1, 20).Draw(r, "samples")}
		c := data.LoaderConfig{
			BatchSize: rapid.IntRange(1, set.n).Draw(r, "batch size"),
			Seed:      rapid.Uint64().Draw(r, "seed"),
			Shuffle:   rapid.Bool().Draw(r, "shuffle"),
			Prefetch:  rapid.IntRange(0, 3).Draw(r, "prefetch"),
		}
		first := newLoader(t, set, c)
		defer first.Close()
		for range rapid.IntRange(0, 30).Draw(r, "delivered") {
			next(r, first)
		}

		c.Start = first.Position()
		c.Prefetch = rapid.IntRange(0, 3).Draw(r, "prefetch when resumed")
		second := newLoader(t, set, c)
		defer second.Close()
		for range 30 {
			if first.Position() != second.Position() {
				r.Fatalf("positions %v and, resumed, %v", first.Position(), second.Position())
			}
			if diff := cmp.Diff(next(r, first), next(r, second)); diff != "" {
				r.Fatalf("uninterrupted (-) and resumed from %v (+):\n%s", c.Start, diff)
			}
		}
	})
}

// next returns the next batch, or nil at the end of an epoch.
func next(t *rapid.T, loader *data.Loader) *data.Batch {
	batch, err := loader.Next(context.Background())
	if err == io.EOF {
		return nil
	}
	must.Do(t, err)
	return &batch
}

// An epoch is a permutation of the set, another one each epoch and for each seed, and that which
// Permutation gives.
func TestShuffle(t *testing.T) {
	set := &counting{n: 50}
	order := func(seed uint64, epoch int) []int {
		var indices []int
		for _, batch := range deliver(t, set,
			data.LoaderConfig{BatchSize: 8, Seed: seed, Shuffle: true, Start: data.Position{Epoch: epoch},
				Prefetch: 2}, -1) {
			for _, index := range batch.Input.Int64 {
				indices = append(indices, int(index))
			}
		}
		return indices
	}
	first := order(1, 0)
	if !slices.Equal(first, data.Permutation(50, 1, 0)) {
		t.Errorf("the order is %v, not Permutation's", first)
	}
	if slices.Equal(first, order(1, 1)) || slices.Equal(first, order(2, 0)) {
		t.Error("another epoch or seed has the same order")
	}
}

func TestNewLoaderRefuses(t *testing.T) {
	tests := []struct {
		samples int
		config  data.LoaderConfig
		want    string
	}{
		{5, data.LoaderConfig{}, "BatchSize is 0; want at least 1"},
		{5, data.LoaderConfig{BatchSize: -1}, "BatchSize is -1"},
		{5, data.LoaderConfig{BatchSize: 1, Prefetch: -1}, "Prefetch is -1"},
		{0, data.LoaderConfig{BatchSize: 1}, "there are no samples"},
		{5, data.LoaderConfig{BatchSize: 2, Start: data.Position{Batch: 4}},
			"Start is {0 4}: the position is of another data set or batch size; want a batch from 0 to 3"},
		{5, data.LoaderConfig{BatchSize: 2, Start: data.Position{Batch: -1}}, "Start is {0 -1}"},
		{5, data.LoaderConfig{BatchSize: 2, Start: data.Position{Epoch: -1}}, "Start is {-1 0}"},
	}
	for _, test := range tests {
		_, err := data.NewLoader(&counting{n: test.samples}, test.config)
		wantError(t, err, "data: counting: "+test.want)
	}
}

// While a step runs the next batch is prepared: ten steps of a second over batches of a second take
// eleven seconds.
func TestPrefetchOverlaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		loader := newLoader(t, &counting{n: 100, slow: time.Second},
			data.LoaderConfig{BatchSize: 1, Prefetch: 1})
		start := time.Now()
		for range 10 {
			must.Get(loader.Next(t.Context()))(t)
			time.Sleep(time.Second)
		}
		if took := time.Since(start); took != 11*time.Second {
			t.Errorf("took %v, want 11s", took)
		}
	})
}

func TestCancelledNextLosesNothing(t *testing.T) {
	for prefetch := range 3 {
		synctest.Test(t, func(t *testing.T) {
			loader := newLoader(t, &counting{n: 4, slow: time.Minute},
				data.LoaderConfig{BatchSize: 2, Prefetch: prefetch})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if prefetch == 0 {
				cancel() // Fill itself cannot be interrupted
			}
			if _, err := loader.Next(ctx); !errors.Is(err, ctx.Err()) || err == nil {
				t.Errorf("prefetch %d: error %v, want the context's", prefetch, err)
			}
			if position := loader.Position(); position != (data.Position{}) {
				t.Errorf("prefetch %d: at %v after a call that delivered nothing", prefetch, position)
			}
			batch, err := loader.Next(t.Context())
			if err != nil || !slices.Equal(batch.Input.Int64, []int64{0, 1}) {
				t.Errorf("prefetch %d: then %v, %v, want the first batch", prefetch, batch.Input.Int64, err)
			}
		})
	}
}

// An error arrives with its batch, after the good ones, says where it happened and stays.
func TestErrorOfTheDataset(t *testing.T) {
	broken := errors.New("bad sector")
	for prefetch := range 4 {
		loader := newLoader(t, &counting{n: 10, fails: broken, from: 5},
			data.LoaderConfig{BatchSize: 2, Prefetch: prefetch, Start: data.Position{Epoch: 3}})
		for range 2 {
			must.Get(loader.Next(t.Context()))(t)
		}
		for range 3 {
			_, err := loader.Next(t.Context())
			if !errors.Is(err, broken) {
				t.Fatalf("prefetch %d: error %v, want the data set's", prefetch, err)
			}
			wantError(t, err, "epoch 3, batch 2", "sample 5")
		}
		if got, want := loader.Position(), (data.Position{Epoch: 3, Batch: 2}); got != want {
			t.Errorf("prefetch %d: at %v, want %v", prefetch, got, want)
		}
	}
}

// Close joins the goroutine wherever it is: synctest fails a test whose goroutines outlive it.
func TestClose(t *testing.T) {
	for prefetch := range 4 {
		for delivered := range 7 {
			synctest.Test(t, func(t *testing.T) {
				set := &counting{n: 5, slow: time.Second}
				loader := must.Get(data.NewLoader(set, data.LoaderConfig{BatchSize: 2, Prefetch: prefetch}))(t)
				for range delivered {
					if _, err := loader.Next(t.Context()); err != nil && err != io.EOF {
						t.Fatal(err)
					}
				}
				loader.Close()
				fills := set.fills.Load()
				time.Sleep(time.Hour)
				if set.fills.Load() != fills {
					t.Error("batches are prepared after Close")
				}
				loader.Close()
				if _, err := loader.Next(t.Context()); err != data.ErrClosed {
					t.Errorf("Next after Close: error %v, want ErrClosed", err)
				}
			})
		}
	}
}

// Close wakes a Next that waits.
func TestCloseWhileNextWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		loader := newLoader(t, &counting{n: 5, slow: time.Minute},
			data.LoaderConfig{BatchSize: 2, Prefetch: 1})
		woken := make(chan error)
		go func() {
			_, err := loader.Next(context.Background())
			woken <- err
		}()
		synctest.Wait()
		go loader.Close()
		if err := <-woken; err != data.ErrClosed {
			t.Errorf("error %v, want ErrClosed", err)
		}
	})
}

// The orders that runs of the past have seen. A change here breaks every run that is resumed. The
// values come from an implementation of the same definition in Python.
func TestPermutationIsForever(t *testing.T) {
	tests := []struct {
		n     int
		seed  uint64
		epoch int
		want  []int
	}{
		{10, 0, 0, []int{5, 2, 1, 0, 7, 9, 4, 6, 3, 8}},
		{10, 0, 1, []int{9, 8, 1, 6, 3, 4, 7, 0, 2, 5}},
		{10, 1, 0, []int{0, 2, 8, 3, 1, 9, 4, 6, 5, 7}},
		{16, math.MaxUint64, 1_000_000, []int{11, 3, 9, 2, 10, 5, 1, 15, 0, 13, 8, 4, 6, 7, 14, 12}},
	}
	for _, test := range tests {
		if got := data.Permutation(test.n, test.seed, test.epoch); !slices.Equal(got, test.want) {
			t.Errorf("Permutation(%d, %d, %d) = %v, want %v", test.n, test.seed, test.epoch, got, test.want)
		}
	}
}
