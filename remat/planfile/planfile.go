package planfile

import (
	"fmt"
	"math"
	"strings"

	"penstock.example/remat"
)

// The file of a plan, as JSON:
//
//	{"version":1,"chain":"0123..","feasible":true,"limit_bytes":N,"peak_bytes":N,"time_us":F,"lower_bound_us":F,
//	"ops":[
//	{"op":"forward_keep","layer":0},
//	{"op":"loss"},
//	...]}
//
// The fingerprint of the chain may be left out.

// ParsePlan reads a plan that [FormatPlan] has written. The whole text is to be one plan, without
// fields that it does not have; what is wrong is a [*SyntaxError], with the field's path. Whether
// the operations make sense, and cost what the plan says, only [remat.CheckPlan] can tell.
// ParsePlan is safe on text from anywhere.
func ParsePlan(data []byte) (remat.Plan, error) {
	var p remat.Plan
	err := readFile("plan", data, func(r *reader) error {
		_, err := r.object([]field{
			{"version", false, (*reader).version},
			{"chain", true, into((*reader).fingerprint, &p.Chain)},
			{"feasible", false, into((*reader).truth, &p.Feasible)},
			{"limit_bytes", false, into((*reader).bytes, &p.Limit)},
			{"peak_bytes", false, into((*reader).bytes, &p.Peak)},
			{"time_us", false, into((*reader).time, &p.Time)},
			{"lower_bound_us", false, into((*reader).time, &p.LowerBound)},
			{"ops", false, func(r *reader) error {
				return r.array(func(r *reader) error {
					op, err := r.op()
					p.Ops = append(p.Ops, op)
					return err
				})
			}},
		})
		if err == nil && p.Feasible != (len(p.Ops) > 0) {
			return r.fail("feasible is %t with %d operations; want operations in a feasible plan, and none in another", p.Feasible, len(p.Ops))
		}
		return err
	})
	if err != nil {
		return remat.Plan{}, err
	}
	return p, nil
}

func (r *reader) fingerprint() (string, error) {
	want := fmt.Sprintf("the fingerprint of a chain, %d hexadecimal digits", remat.FingerprintDigits)
	text, err := r.text(want)
	if err == nil && !remat.IsFingerprint(text) {
		return "", r.fail("%s; want %s", describe(text), want)
	}
	return text, err
}

func (r *reader) op() (remat.Op, error) {
	var op remat.Op
	seen, err := r.object([]field{
		{"op", false, into((*reader).kind, &op.Kind)},
		{"layer", true, into(func(r *reader) (int, error) {
			n, err := r.integer("the number of a layer")
			if err == nil && (n < 0 || n > math.MaxInt32) {
				return 0, r.fail("layer %d; want the number of a layer", n)
			}
			return int(n), err
		}, &op.Layer)},
	})
	switch {
	case err != nil:
		return remat.Op{}, err
	case op.Kind == remat.LossStep && seen["layer"]:
		return remat.Op{}, r.fail("the loss has a layer; want none, it is of the whole chain")
	case op.Kind != remat.LossStep && !seen["layer"]:
		return remat.Op{}, r.fail("%v has no layer; want one", op.Kind)
	}
	return op, nil
}

func (r *reader) kind() (remat.Kind, error) {
	text, err := r.text("the name of an operation")
	if err != nil {
		return 0, err
	}
	var names []string
	for k := remat.Forward; k <= remat.Backward; k++ {
		if k.String() == text {
			return k, nil
		}
		names = append(names, k.String())
	}
	return 0, r.fail("%s; want %s", describe(text), strings.Join(names, ", "))
}

type opJSON struct {
	Op    string `json:"op"`
	Layer *int   `json:"layer,omitempty"`
}

// FormatPlan writes a plan as [ParsePlan] reads it, an operation a line. It refuses what ParsePlan
// would.
func FormatPlan(p remat.Plan) ([]byte, error) {
	var w writer
	w.field("version", 1)
	if p.Chain != "" {
		w.field("chain", p.Chain)
	}
	w.field("feasible", p.Feasible)
	w.field("limit_bytes", p.Limit)
	w.field("peak_bytes", p.Peak)
	w.field("time_us", p.Time)
	w.field("lower_bound_us", p.LowerBound)
	w.list("ops", len(p.Ops), func(i int) any {
		o := opJSON{Op: p.Ops[i].Kind.String()}
		if p.Ops[i].Kind != remat.LossStep {
			o.Layer = &p.Ops[i].Layer
		}
		return o
	})
	text, err := w.end()
	if err == nil {
		_, err = ParsePlan(text)
	}
	if err != nil {
		return nil, fmt.Errorf("remat: the plan cannot be written: %w", err)
	}
	return text, nil
}
