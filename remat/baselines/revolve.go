package baselines

import (
	"fmt"

	"penstock.example/remat"
)

// Revolve is the plan of Griewank and Walther (Algorithm 799, ACM TOMS 26(1), 2000): it stores so
// many inputs at a time, x(0) among them, runs each forward with gradients just before its
// backward, and of all such plans it runs the fewest forwards without gradients, by a closed form.
// It counts layers, whatever they cost.
func Revolve(layers, checkpoints int) ([]remat.Op, error) {
	if checkpoints < 1 || checkpoints > layers {
		return nil, fmt.Errorf("remat: %d checkpoints for %d layers; want 1 to %d", checkpoints, layers, layers)
	}
	var w sequence
	w.revolve(0, layers, checkpoints, true)
	return w.ops, nil
}

// revolve adds layers first to end-1, forward and backward, with x(first) as the first of the
// checkpoints. The loss belongs to the last layer of all.
func (w *sequence) revolve(first, end, checkpoints int, loss bool) {
	if end == first {
		return
	}
	at := end - 1
	if checkpoints > 1 {
		// The next checkpoint is x(at).
		fewest := -1
		for j := first + 1; j < end; j++ {
			if n := j - first + revolveForwards(end-j, checkpoints-1) + revolveForwards(j-first, checkpoints); fewest < 0 || n < fewest {
				at, fewest = j, n
			}
		}
	}
	w.keep(first, at)
	if checkpoints > 1 && at > first {
		w.revolve(at, end, checkpoints-1, loss)
	} else {
		w.save(at, end)
		if loss {
			w.loss()
		}
		w.backward(at, end)
	}
	w.revolve(first, at, checkpoints, false)
}

// revolveForwards is the least number of forwards without gradients that layers take with so many
// checkpoints. With r of them for a layer at most, C(checkpoints+r, r) layers can be done.
func revolveForwards(layers, checkpoints int) int {
	r, reach := 0, 1
	for reach < layers {
		r++
		reach = reach * (checkpoints + r) / r
	}
	return r*layers - reach*r/(checkpoints+1)
}
