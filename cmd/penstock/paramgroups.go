package main

import (
	"slices"
	"strconv"
	"strings"

	"penstock.example/nn"
	"penstock.example/optim"
)

// readGroups reads --group.
func (p *plan) readGroups() error {
	p.update.Groups = nil
	for _, text := range p.groups {
		g, ok := readGroup(text)
		if !ok {
			return badUsage("--group %q: want PATTERN:scale=X,weight-decay=W with one of the two or both, finite and not negative, such as '*.bias:weight-decay=0'", text)
		}
		p.update.Groups = append(p.update.Groups, g)
	}
	return nil
}

func readGroup(text string) (g optim.Group, ok bool) {
	i := strings.LastIndexByte(text, ':')
	if i < 1 {
		return g, false
	}
	g.Params = text[:i]
	for setting := range strings.SplitSeq(text[i+1:], ",") {
		name, value, _ := strings.Cut(setting, "=")
		x, err := strconv.ParseFloat(value, 64)
		switch {
		case err != nil:
			return g, false
		case name == "scale" && x != 0: // which would be a frozen part
			g.Scale = x
		case name == "weight-decay":
			g.WeightDecay = &x
		default:
			return g, false
		}
	}
	_, err := optim.SGD(optim.Config{Groups: []optim.Group{g}})
	return g, err == nil
}

// checkGroups refuses a group without parameters.
func (j *job) checkGroups() error {
	params := nn.Params(j.model)
	for _, g := range j.update.Groups {
		if !slices.ContainsFunc(params, func(p nn.NamedParam) bool { return nn.Match(g.Params, p.Name) }) {
			return badUsage("--group %v: no parameter of %s has such a name, of which there are %d from %s to %s; want a pattern of some",
				g, j.modelName, len(params), params[0].Name, params[len(params)-1].Name)
		}
	}
	return nil
}
