package main

import (
	"fmt"
	"io"
	"strings"

	"penstock.example/nn"
	"penstock.example/profile"
	"penstock.example/remat"
	"penstock.example/remat/solver"
)

// profileReport is a measured model as a table.
type profileReport struct {
	profilePlan
	chain    profile.Chain
	least    remat.LeastLimit
	greatest int64 // the peak of plain training
}

// findLimits finds the least limit that has a plan, and the limit above which nothing is gained.
func (r *profileReport) findLimits() error {
	plain, err := remat.Check(r.chain.Chain, remat.None(len(r.chain.Layers)))
	if err != nil {
		return err
	}
	r.greatest = plain.Peak
	r.least, err = solver.ExplainLeast(r.chain.Chain)
	return err
}

func (r profileReport) show(w io.Writer) error {
	c := r.chain
	t := newTable(w)
	fmt.Fprintln(t, "\tLAYER\tFORWARD\tNO GRADIENT\tBACKWARD\tSPREAD\tOUTPUT\tSAVED\tTEMPORARY\tGRADIENT\tWEIGHTS")
	var all remat.Layer
	for i, l := range c.Layers {
		fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", i, l.Name, micros(l.Forward),
			micros(l.ForwardNoGrad), micros(l.Backward), apart(c.Spread[i]),
			formatBytes(l.Output), formatBytes(l.Saved), formatBytes(max(l.ForwardTmp, l.ForwardNoGradTmp,
				l.BackwardTmp)), formatBytes(l.Gradient), formatBytes(l.WeightGradient))
		all.Forward, all.ForwardNoGrad, all.Backward = all.Forward+l.Forward, all.ForwardNoGrad+l.ForwardNoGrad, all.Backward+l.Backward
		all.Output, all.Saved, all.Gradient, all.WeightGradient = all.Output+l.Output, all.Saved+l.Saved, all.Gradient+l.Gradient, all.WeightGradient+l.WeightGradient
	}
	fmt.Fprintf(t, "\tall %d\t%s\t%s\t%s\t\t%s\t%s\t\t%s\t%s\n", len(c.Layers), micros(all.Forward),
		micros(all.ForwardNoGrad), micros(all.Backward),
		formatBytes(all.Output), formatBytes(all.Saved), formatBytes(all.Gradient), formatBytes(all.WeightGradient))
	if err := t.Flush(); err != nil {
		return err
	}
	width, _ := terminalWidth(w)
	fmt.Fprintf(w, "\n%s on %d samples of %s: %d layers\n", r.name, r.batch, sizes(r.samples.Input.Shape), len(r.model.Layers()))
	for _, line := range joins(c.Merged) {
		fmt.Fprintln(w, wrapped(line, width))
	}
	if c.Prologue > 0 {
		fmt.Fprintln(w, wrapped(fmt.Sprintf("the first %d units have no backward, are run once, and are not in the chain; they need %s",
			c.Prologue, formatBytes(c.ProloguePeak)), width))
	}
	fmt.Fprintln(w)
	t = newTable(w)
	if r.lossName != "none" {
		fmt.Fprintf(t, "loss\t%s, and %s for a moment\n", micros(c.Loss.Backward), formatBytes(c.Loss.Tmp))
	}
	fmt.Fprintf(t, "step\t%s if nothing is computed again\n", micros(c.Once()))
	fmt.Fprintf(t, "timed\twhile %s worked, with %s\n", counted(c.Timing.Devices, "device"), counted(r.threads, "thread")+" each")
	fmt.Fprintf(t, "saved\t%s, and the input's %s\n", formatBytes(all.Saved), formatBytes(c.Input))
	fmt.Fprintf(t, "least\t%s (%d bytes), set by %s: %s\n", formatBytes(r.least.Bytes), r.least.Bytes,
		opName(c.Chain, r.least.Op), partsOf(r.least.Parts))
	fmt.Fprintf(t, "greatest\t%s (%d bytes), from which on nothing is computed again\n", formatBytes(r.greatest), r.greatest)
	fmt.Fprintf(t, "state\t%s of parameters and buffers, which limits of a chain do not count\n", formatBytes(stateBytes(r.model)))
	return t.Flush()
}

// apart is how much longer the median run took than the run that counts: the worst of the three
// kinds.
func apart(s profile.Spread) string {
	return fmt.Sprintf("%.0f %%", 100*max(s.Forward, s.ForwardNoGrad, s.Backward))
}

// joins is a line for each reason to join layers with those before them.
func joins(merged []profile.Merge) []string {
	var reasons []string
	layers := map[string][]string{}
	for _, m := range merged {
		if layers[m.Reason] == nil {
			reasons = append(reasons, m.Reason)
		}
		layers[m.Reason] = append(layers[m.Reason], m.Layer)
	}
	var lines []string
	for _, reason := range reasons {
		list := layers[reason]
		lines = append(lines, fmt.Sprintf("%d joined with the one before (%s): %s", len(list), reason, strings.Join(list, " ")))
	}
	return lines
}

// stateBytes are those of all parameters and buffers.
func stateBytes(model nn.Layer) (sum int64) {
	for _, s := range nn.State(model) {
		sum += s.Bytes()
	}
	return sum
}

// sizes writes the shape of a sample: 3 x 224 x 224.
func sizes(shape []int64) string {
	words := make([]string, len(shape))
	for i, n := range shape {
		words[i] = fmt.Sprint(n)
	}
	return strings.Join(words, " x ")
}
