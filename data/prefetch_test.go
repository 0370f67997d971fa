package data_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"penstock.example/data"
	"penstock.example/internal/must"
)

// Prefetching goes as far ahead as it was told, and no further, however long nobody asks.
func TestPrefetchDepth(t *testing.T) {
	for depth := range 5 {
		synctest.Test(t, func(t *testing.T) {
			set := &counting{n: 100}
			loader := newLoader(t, set, data.LoaderConfig{BatchSize: 1, Prefetch: depth})
			for delivered := range 4 {
				synctest.Wait()
				if got, want := set.fills.Load(), int64(delivered+depth); got != want {
					t.Errorf("prefetch %d: %d batches are prepared with %d delivered, want %d", depth, got, delivered, want)
				}
				if _, err := loader.Next(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// While a step runs the next batch is prepared: ten steps of a second over batches of a second take
// eleven seconds.
func TestPrefetchOverlaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		loader := newLoader(t, &counting{n: 100, slow: time.Second}, data.LoaderConfig{BatchSize: 1, Prefetch: 1})
		start := time.Now()
		for range 10 {
			if _, err := loader.Next(t.Context()); err != nil {
				t.Fatal(err)
			}
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
			loader := newLoader(t, &counting{n: 4, slow: time.Minute}, data.LoaderConfig{BatchSize: 2, Prefetch: prefetch})
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
		loader := newLoader(t, &counting{n: 10, fails: broken, from: 5}, data.LoaderConfig{BatchSize: 2, Prefetch: prefetch, Start: data.Position{Epoch: 3}})
		for range 2 {
			if _, err := loader.Next(t.Context()); err != nil {
				t.Fatal(err)
			}
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

func TestCloseAfterAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		loader := newLoader(t, &counting{n: 5, fails: io.ErrNoProgress}, data.LoaderConfig{BatchSize: 2, Prefetch: 2})
		synctest.Wait()
		loader.Close()
	})
}

// Close wakes a Next that waits.
func TestCloseWhileNextWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		loader := newLoader(t, &counting{n: 5, slow: time.Minute}, data.LoaderConfig{BatchSize: 2, Prefetch: 1})
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
