package main

import (
	"fmt"
	"slices"
	"strings"

	"penstock.example/internal/arg"
	"penstock.example/planner/search"
)

// A model is measured for its smallest micro-batches first. What a unit's backward takes with more rows is known
// from two sizes: activations and their gradients grow with the rows. Sizes of which some unit takes more than any
// device may hold have no plan, and are not measured.

// margin is the part of a limit by which a unit's bytes must be above it: kernels for other sizes may let go of
// some earlier.
const margin = 1. / 16

// tooManyRows says why micro-batches of so many rows have no plan; "" if they may have one. Measured are those of
// fewer rows, as many as there are yet.
func (j *searchJob) tooManyRows(rows int, measured []search.Measured) string {
	list := slices.Clone(measured)
	slices.SortStableFunc(list, func(a, b search.Measured) int { return a.Rows - b.Rows })
	list = slices.CompactFunc(list, func(a, b search.Measured) bool { return a.Rows == b.Rows }) // with other threads
	most := j.machine.Largest(j.wishes.Limit)
	if len(list) < 2 || most == 0 {
		return ""
	}
	few, more := list[len(list)-2], list[len(list)-1]
	for u, l := range more.Chain.Layers {
		if bytes := unitBytes(few, more, u, rows, j.wishes.State); float64(bytes) > (1+margin)*float64(most) {
			return fmt.Sprintf("layer %q alone takes %s with %s, and a device may have %s", l.Name, formatBytes(bytes), counted(rows, "row"), arg.Size(most))
		}
	}
	return ""
}

// unitBytes is what is there in every plan while the backward of unit u runs: its input, what it has saved, the
// gradients of its output and input, its weights and the optimizer's state. Few and more are two
// sizes on whose line these lie. That of the input does not count where a part of the rest may be gone by then.
func unitBytes(few, more search.Measured, u, rows, state int) int64 {
	on := func(a, b int64) int64 {
		line := b + (b-a)*int64(rows-more.Rows)/int64(more.Rows-few.Rows)
		return max(0, min(line, b*int64(rows)/int64(more.Rows))) // what is a view of few rows may be a copy of more
	}
	a, b := few.Chain, more.Chain
	given, gradient := on(a.Input, b.Input), on(a.InputGradient, b.InputGradient)
	if u > 0 {
		given, gradient = on(a.Layers[u-1].Output, b.Layers[u-1].Output), on(a.Layers[u-1].Gradient, b.Layers[u-1].Gradient)
	}
	x, y := a.Layers[u], b.Layers[u]
	if x.BackwardEarly > 0 || y.BackwardEarly > 0 {
		gradient = 0
	}
	bytes := given + on(x.Saved, y.Saved) + on(x.Gradient, y.Gradient) + gradient + int64(1+state)*y.WeightGradient
	if more.Held != nil {
		bytes += more.Held[u]
	}
	return bytes
}

// rowsLeftOut says which sizes are not measured.
func rowsLeftOut(rows []int, why string) string {
	var list []string
	for _, n := range rows {
		list = append(list, fmt.Sprint(n))
	}
	verb := "is"
	if len(rows) > 1 || rows[0] != 1 {
		verb = "are"
	}
	text := list[len(list)-1]
	if len(list) > 1 {
		text = strings.Join(list[:len(list)-1], ", ") + " and " + text
	}
	return fmt.Sprintf("micro-batches of %s rows %s not measured: %s", text, verb, why)
}
