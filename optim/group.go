package optim

import (
	"fmt"
	"strings"

	"penstock.example/nn"
)

// Group is parameters that are updated with another rate, or another weight decay, such as the body of a
// network whose head is new, or biases without decay. As a parameter group of torch.optim it follows
// the schedule of the learning rate.
type Group struct {
	// Params is the pattern of the parameters' full names (nn.Match).
	Params string
	// Scale is what the learning rate is multiplied by; 0 stands for 1. For none at all see nn.Freeze.
	Scale float64
	// WeightDecay replaces that of the Config; nil leaves it.
	WeightDecay *float64
}

// String is the group as a flag has it: "*.bias:scale=0.1,weight-decay=0".
func (g Group) String() string {
	var parts []string
	if g.Scale != 0 {
		parts = append(parts, fmt.Sprintf("scale=%v", g.Scale))
	}
	if g.WeightDecay != nil {
		parts = append(parts, fmt.Sprintf("weight-decay=%v", *g.WeightDecay))
	}
	return g.Params + ":" + strings.Join(parts, ",")
}

// checkGroups returns an error for the first group that is wrong.
func (o Config) checkGroups(optimizer string) error {
	for _, g := range o.Groups {
		want := ""
		switch {
		case g.Params == "":
			want = "a pattern of names, such as *.bias"
		case !isSize(g.Scale):
			want = "a Scale that is a finite number and not negative"
		case g.WeightDecay != nil && !isSize(*g.WeightDecay):
			want = "a WeightDecay that is a finite number and not negative"
		default:
			continue
		}
		return &ConfigError{Of: "optim: " + optimizer, Field: "Groups", Value: g, Remedy: "want " + want}
	}
	return nil
}

// groupRule is the rule for the parameters of a group.
type groupRule struct {
	params string
	scale  float64
	rule   rule
}

// grouped makes the rule of each group, which is make's with the group's settings.
func grouped(o Config, make func(Config) rule) (all []groupRule) {
	for _, g := range o.Groups {
		own := o
		if g.WeightDecay != nil {
			own.WeightDecay = *g.WeightDecay
		}
		all = append(all, groupRule{g.Params, orElse(g.Scale, 1), make(own)})
	}
	return all
}

// ruleOf is the rule for a parameter, that of the first group that has it, and what the rate is
// multiplied by. All rules keep the same slots.
func (o *optimizer) ruleOf(name string) (rule, float64) {
	for _, g := range o.groups {
		if nn.Match(g.params, name) {
			return g.rule, g.scale
		}
	}
	return o.rule, 1
}
