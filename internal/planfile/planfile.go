// Package planfile reads and writes chains and plans as JSON, an element of a list in each line.
// Fields that are unknown, missing, null, there twice, or in another case are errors.
package planfile

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"penstock.example/internal/strict"
	"penstock.example/remat"
)

// planFile is the file of a plan. The fingerprint of the chain may be left out.
type planFile struct {
	Version    int      `json:"version"`
	Chain      string   `json:"chain,omitzero"`
	Feasible   bool     `json:"feasible"`
	Limit      int64    `json:"limit_bytes"`
	Peak       int64    `json:"peak_bytes"`
	Time       float64  `json:"time_us"`
	LowerBound float64  `json:"lower_bound_us"`
	Ops        []opFile `json:"ops"`
}

// opFile is an operation. The loss has no layer.
type opFile struct {
	Op    string `json:"op"`
	Layer *int   `json:"layer,omitzero"`
}

// ParsePlan reads a plan that [FormatPlan] has written; [remat.CheckPlan] checks its operations and
// costs. ParsePlan is safe on text from anywhere.
func ParsePlan(data []byte) (remat.Plan, error) {
	var f planFile
	if err := parse("plan", data, &f, &f.Version); err != nil {
		return remat.Plan{}, err
	}
	p := remat.Plan{Feasible: f.Feasible, Limit: f.Limit, Peak: f.Peak, Time: f.Time,
		LowerBound: f.LowerBound, Chain: f.Chain}
	refuse := func(path, format string, args ...any) (remat.Plan, error) {
		return remat.Plan{}, fmt.Errorf("remat: plan, %w",
			&strict.Error{Path: path, Reason: fmt.Sprintf(format, args...)})
	}
	for i, o := range f.Ops {
		path := fmt.Sprintf("ops[%d]", i)
		kind := remat.Kind(slices.Index(kindNames, o.Op))
		switch {
		case kind < 0:
			return refuse(path+".op", "%.40q; want %s", o.Op, strings.Join(kindNames, ", "))
		case (kind == remat.LossStep) != (o.Layer == nil):
			return refuse(path, "%v with a layer, or without one; want a layer, unless it is the loss", kind)
		case o.Layer == nil:
			p.Ops = append(p.Ops, remat.Op{Kind: kind})
		case *o.Layer < 0 || *o.Layer > math.MaxInt32:
			return refuse(path+".layer", "%d; want the number of a layer", *o.Layer)
		default:
			p.Ops = append(p.Ops, remat.Op{Kind: kind, Layer: *o.Layer})
		}
	}
	if p.Feasible != (len(p.Ops) > 0) {
		return refuse("feasible", "%t with %d operations; want operations in a feasible plan alone",
			p.Feasible, len(p.Ops))
	}
	return p, nil
}

// kindNames are the names of operations, by remat.Kind.
var kindNames = func() (names []string) {
	for k := remat.Forward; k <= remat.Backward; k++ {
		names = append(names, k.String())
	}
	return names
}()

// FormatPlan writes a plan as [ParsePlan] reads it.
func FormatPlan(p remat.Plan) ([]byte, error) {
	f := planFile{1, p.Chain, p.Feasible, p.Limit, p.Peak, p.Time, p.LowerBound, nil}
	for _, o := range p.Ops {
		written := opFile{Op: o.Kind.String()}
		if o.Kind != remat.LossStep {
			written.Layer = &o.Layer
		}
		f.Ops = append(f.Ops, written)
	}
	return strict.Lines(f)
}
