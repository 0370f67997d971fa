package main

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"
)

// effort is how long a run measures.
type effort struct {
	Rounds int           // of each comparison
	Round  time.Duration // for each side of a round, which takes at least one step
	Trial  time.Duration // for each number of threads that an opponent tries
	Blocks int           // of the cell's overhead
	Quick  bool          // fewer models and points
}

func effortOf(quick bool) effort {
	if quick {
		return effort{3, 150 * time.Millisecond, 100 * time.Millisecond, 20, true}
	}
	return effort{9, 500 * time.Millisecond, time.Second, 200, false}
}

// effortOnGPUs is short, as machines with GPUs are scarce.
var effortOnGPUs = effort{Rounds: 3, Round: 300 * time.Millisecond, Trial: 50 * time.Millisecond, Blocks: 20}

// side takes steps for a time, at least one. It returns the median milliseconds of a step.
type side func(ctx context.Context, length time.Duration) (float64, error)

// match has, by round, the milliseconds of a step of each side.
type match struct {
	Ours, Theirs []float64
	Failure      error // of the opponent
}

// Faster is our throughput divided by the opponent's.
func (m match) Faster() spread { return spreadOf(byRound(m.Theirs, m.Ours, ratio)) }

// play warms both sides up with a step, then lets them alternate. Each side goes first in every
// other round. A failure of the opponent ends the match without an error.
func (e effort) play(ctx context.Context, ours, theirs side) (m match, err error) {
	for i := range e.Rounds + 1 {
		length := e.Round * time.Duration(min(i, 1))
		var o, t float64
		for turn := range 2 {
			if turn == i%2 {
				o, err = ours(ctx, length)
			} else {
				t, m.Failure = theirs(ctx, length)
			}
			if err = cmp.Or(err, ctx.Err()); err != nil || m.Failure != nil {
				return m, err
			}
			time.Sleep(rest)
		}
		if i > 0 {
			m.Ours, m.Theirs = append(m.Ours, o), append(m.Theirs, t)
		}
	}
	return m, nil
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1e3 }

func (b *bench) threads() int {
	if b.large {
		return 1
	}
	return runtime.NumCPU()
}

// compare plays a match with a script of bench/python, and adds the ratio of throughputs, or the
// opponent's failure, to the report. The row comes with the conditions of our side.
func (b *bench) compare(ctx context.Context, x row, ours side, c *child, theirs side) error {
	m, err := b.play(ctx, ours, theirs)
	if err != nil {
		return err
	}
	if m.Failure != nil {
		return b.fail(x, m.Failure)
	}
	x.Value = m.Faster()
	x.Conditions += fmt.Sprintf("; theirs %d; %.1f ms, theirs %.1f", c.last.Threads, median(m.Ours),
		median(m.Theirs))
	if product := c.last.Product; product > 0 {
		rate := c.last.Flops / median(m.Ours) * 1e3
		x.Conditions += fmt.Sprintf("; %.3g TFLOP/s, %.0f %% of a product's", rate/1e12, 100*rate/product)
	}
	b.add(x)
	return nil
}

// spread is the median of several measurements and their range.
type spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

func spreadOf(values []float64) spread {
	if len(values) == 0 {
		return spread{}
	}
	v := slices.Sorted(slices.Values(values))
	m := v[len(v)/2]
	if len(v)%2 == 0 {
		m = (v[len(v)/2-1] + m) / 2
	}
	return spread{Median: m, Min: v[0], Max: v[len(v)-1]}
}

func median(values []float64) float64 { return spreadOf(values).Median }

// byRound combines the values of both sides by round, so that disturbances of a round cancel.
func byRound(a, b []float64, f func(a, b float64) float64) []float64 {
	out := make([]float64, min(len(a), len(b)))
	for i := range out {
		out[i] = f(a[i], b[i])
	}
	return out
}

func minus(a, b float64) float64 { return a - b }
func ratio(a, b float64) float64 { return a / b }
