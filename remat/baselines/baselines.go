package baselines

import (
	"fmt"
	"math"

	"penstock.example/remat"
)

// None is the plan that saves everything and computes nothing again, as plain training does.
func None(layers int) []remat.Op {
	var w sequence
	w.save(0, layers)
	w.loss()
	w.backward(0, layers)
	return w.ops
}

// All is the plan that keeps only the input, and computes everything before a layer again for its
// backward: rotor's recompute_all. It comes close to the least memory, but some layers take less if
// everything is kept.
func All(layers int) []remat.Op {
	var w sequence
	w.keep(0, layers)
	w.loss()
	for i := layers - 1; i >= 0; i-- {
		w.keep(0, i)
		w.save(i, i+1)
		w.backward(i, i+1)
	}
	return w.ops
}

// Sequential is the plan of PyTorch's checkpoint_sequential. Each segment has layers/segments
// layers, and the last one the rest, too. A segment keeps its input and is computed again as a
// whole for its backward. The last segment saves everything at once.
func Sequential(layers, segments int) ([]remat.Op, error) {
	if segments < 1 || segments > layers {
		return nil, fmt.Errorf("remat: %d segments of %d layers; want 1 to %d", segments, layers, layers)
	}
	var w sequence
	size := layers / segments
	last := size * (segments - 1) // first layer of the last
	for first := 0; first < last; first += size {
		w.keep(first, first+size)
	}
	w.save(last, layers)
	w.loss()
	w.backward(last, layers)
	for first := last - size; first >= 0; first -= size {
		w.save(first, first+size)
		w.backward(first, first+size)
	}
	return w.ops, nil
}

// SequentialSqrt is [Sequential] with as many segments as layers in a segment, about the root of
// the number of layers (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016).
func SequentialSqrt(layers int) []remat.Op {
	ops, err := Sequential(layers, roundSqrt(layers))
	if err != nil {
		return nil // of no layers
	}
	return ops
}

func roundSqrt(n int) int { return int(math.Round(math.Sqrt(float64(n)))) }

// sequence is operations that are put together. Its methods take layers from first to end-1.
type sequence struct{ ops []remat.Op }

func (w *sequence) add(k remat.Kind, layer int) {
	w.ops = append(w.ops, remat.Op{Kind: k, Layer: layer})
}

func (w *sequence) loss() { w.add(remat.LossStep, 0) }

// keep runs layers without gradients, and keeps the input of the first.
func (w *sequence) keep(first, end int) {
	for i := first; i < end; i++ {
		if i == first {
			w.add(remat.ForwardKeep, i)
		} else {
			w.add(remat.Forward, i)
		}
	}
}

func (w *sequence) save(first, end int) {
	for i := first; i < end; i++ {
		w.add(remat.ForwardSave, i)
	}
}

func (w *sequence) backward(first, end int) {
	for i := end - 1; i >= first; i-- {
		w.add(remat.Backward, i)
	}
}
