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
			return refuse(path, "%v; want a layer, unless it is the loss", kind)
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

// chainFile is the file of a chain, in microseconds and bytes. Fields with omitzero may be left
// out. By default forwards without gradients cost the same as with them, gradients are as large as
// outputs, and the rest is 0 or unknown. If some layers have deferred, the others defer nothing.
type chainFile struct {
	Version         int           `json:"version"`
	Input           int64         `json:"input_bytes"`
	InputGradient   *int64        `json:"input_gradient_bytes,omitzero"`
	Layers          []layerFile   `json:"layers"`
	Loss            remat.Loss    `json:"loss"`
	Model           string        `json:"model,omitzero"`
	Rows            int           `json:"rows,omitzero"`
	Threads         int           `json:"threads,omitzero"`
	Devices         int           `json:"devices,omitzero"`
	Spread          float64       `json:"spread,omitzero"`
	Carries         []remat.Carry `json:"carries,omitzero"`
	GradientCarries []remat.Carry `json:"gradient_carries,omitzero"`
}

type layerFile struct {
	Name             string          `json:"name"`
	Forward          float64         `json:"forward_us"`
	ForwardNoGrad    *float64        `json:"forward_nograd_us,omitzero"`
	Backward         float64         `json:"backward_us"`
	BackwardLater    float64         `json:"backward_later_us,omitzero"`
	Output           int64           `json:"output_bytes"`
	Saved            int64           `json:"saved_bytes"`
	ForwardTmp       int64           `json:"forward_tmp_bytes"`
	ForwardNoGradTmp *int64          `json:"forward_nograd_tmp_bytes,omitzero"`
	BackwardTmp      int64           `json:"backward_tmp_bytes"`
	BackwardEarly    int64           `json:"backward_early_bytes,omitzero"`
	Gradient         *int64          `json:"gradient_bytes,omitzero"`
	WeightGradient   int64           `json:"weight_gradient_bytes,omitzero"`
	Deferred         *remat.Deferred `json:"deferred,omitzero"`
}

// ParseChain reads a chain that [FormatChain] or another program has written, and checks it. It is safe
// on text from anywhere.
func ParseChain(data []byte) (remat.Chain, error) {
	var f chainFile
	if err := parse("chain", data, &f, &f.Version); err != nil {
		return remat.Chain{}, err
	}
	c := remat.Chain{
		Input: f.Input, InputGradient: orDefault(f.InputGradient, f.Input), Loss: f.Loss,
		Model: f.Model, Rows: f.Rows, Threads: f.Threads, Devices: f.Devices, Spread: f.Spread,
		Carries: f.Carries, GradientCarries: f.GradientCarries,
	}
	for i, l := range f.Layers {
		c.Layers = append(c.Layers, remat.Layer{
			Name: l.Name, Forward: l.Forward, ForwardNoGrad: orDefault(l.ForwardNoGrad, l.Forward),
			Backward: l.Backward, BackwardLater: l.BackwardLater, Output: l.Output, Saved: l.Saved,
			ForwardTmp: l.ForwardTmp, ForwardNoGradTmp: orDefault(l.ForwardNoGradTmp, l.ForwardTmp),
			BackwardTmp: l.BackwardTmp, BackwardEarly: l.BackwardEarly,
			Gradient: orDefault(l.Gradient, l.Output), WeightGradient: l.WeightGradient,
		})
		if l.Deferred != nil {
			if c.Deferred == nil {
				c.Deferred = make([]remat.Deferred, len(f.Layers))
			}
			c.Deferred[i] = *l.Deferred
		}
	}
	if err := c.Check(); err != nil {
		return remat.Chain{}, err
	}
	return c, nil
}

// FormatChain checks a chain and writes it as [ParseChain] reads it.
func FormatChain(c remat.Chain) ([]byte, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	f := chainFile{
		Version: 1, Input: c.Input, InputGradient: unlessDefault(c.InputGradient, c.Input), Loss: c.Loss,
		Model: c.Model, Rows: c.Rows, Threads: c.Threads, Devices: c.Devices, Spread: c.Spread,
		Carries: c.Carries, GradientCarries: c.GradientCarries,
	}
	for i, l := range c.Layers {
		f.Layers = append(f.Layers, layerFile{
			Name: l.Name, Forward: l.Forward, ForwardNoGrad: unlessDefault(l.ForwardNoGrad, l.Forward),
			Backward: l.Backward, BackwardLater: l.BackwardLater, Output: l.Output, Saved: l.Saved,
			ForwardTmp: l.ForwardTmp, ForwardNoGradTmp: unlessDefault(l.ForwardNoGradTmp, l.ForwardTmp),
			BackwardTmp: l.BackwardTmp, BackwardEarly: l.BackwardEarly,
			Gradient: unlessDefault(l.Gradient, l.Output), WeightGradient: l.WeightGradient,
		})
		if c.Deferred != nil {
			f.Layers[i].Deferred = &c.Deferred[i]
		}
	}
	return strict.Lines(f)
}

// parse reads a file and checks its version.
func parse(what string, data []byte, file any, version *int) error {
	if err := strict.Unmarshal(data, file); err != nil {
		return fmt.Errorf("remat: %s, %w", what, err)
	}
	if *version != 1 {
		return fmt.Errorf("remat: %s, %w", what,
			&strict.Error{Path: "version", Reason: fmt.Sprintf("%d; want 1", *version)})
	}
	return nil
}

// orDefault returns a field, or its default if it is left out.
func orDefault[T any](field *T, otherwise T) T {
	if field == nil {
		return otherwise
	}
	return *field
}

// unlessDefault returns a field to write, nil if it has its default.
func unlessDefault[T comparable](v, otherwise T) *T {
	if v == otherwise {
		return nil
	}
	return &v
}
