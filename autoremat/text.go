package autoremat

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"penstock.example/remat"
)

// String returns a table of the units for the latest kind of batches: what their operations take,
// what the plan keeps of each, and how often it recomputes it.
func (m *Module) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.latest
	if s == nil {
		return fmt.Sprintf("autoremat: a model of %d layers; nothing was measured\n", len(m.layers))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "batch %s; limit %d bytes (%s)", s.key, m.limit.inForce(), m.limit.source)
	if s.ops != nil {
		fmt.Fprintf(&b, ", predicted peak %d", m.last)
	}
	b.WriteString("\n")
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "unit\tforward us\tbackward us\toutput bytes\tsaved bytes\tgradients bytes\tkept\trun again\n")
	var runs []remat.Runs
	if s.ops != nil {
		if report, err := remat.Check(s.chain.Chain, s.ops); err == nil {
			runs = report.Layers
		}
	}
	kept := keeping(s.ops, len(s.chain.Layers))
	for i, l := range s.chain.Layers {
		again := ""
		if runs != nil {
			again = fmt.Sprint(runs[i].Recomputed())
		}
		fmt.Fprintf(w, "%s\t%.0f\t%.0f\t%d\t%d\t%d\t%s\t%s\n",
			l.Name, l.Forward, l.Backward, l.Output, l.Saved, l.WeightGradient, kept[i], again)
	}
	w.Flush()
	return b.String()
}

// keeping returns, by layer, what of it is kept when the loss is computed.
func keeping(ops []remat.Op, layers int) []string {
	out := make([]string, layers)
	if ops == nil {
		return out
	}
	for i := range out {
		out[i] = "nothing"
	}
	for _, op := range ops {
		switch op.Kind {
		case remat.LossStep:
			return out
		case remat.ForwardKeep:
			out[op.Layer] = "input"
		case remat.ForwardSave:
			out[op.Layer] = "everything"
		}
	}
	return out
}

// String returns the report in one line.
func (r Report) String() string {
	loss := ""
	if !r.LossKnown {
		loss = ", the loss estimated"
	}
	return fmt.Sprintf("batch %s: %d units, %d operations in %.0f us, predicted peak %d of %d bytes (%s)%s; solved in %v",
		r.Inputs, r.Units, len(r.Plan.Ops), r.Plan.Time, r.Predicted, r.Limit, r.Source, loss, r.Solving)
}
