package main

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"penstock.example/models"
)

// profilePlan is a checked command line of penstock profile.
type profilePlan struct {
	profileFlags
	measuredModel
}

// plan checks flags that were read against each other. Its errors are usage errors of one line.
func (f profileFlags) plan(s *pflag.FlagSet) (profilePlan, error) {
	p := profilePlan{profileFlags: f}
	switch {
	case !s.Changed("model"):
		return p, badUsage("--model is needed: one of %s", strings.Join(models.Names(), ", "))
	case p.out == "-" && s.Changed("format") && p.format == "table":
		return p, badUsage("--out - and --format table: standard output is for one of the two; want --format left out, or a file")
	case p.out == "-":
		p.format = "json"
	}
	var err error
	if s.Changed("size") {
		if err = p.sized(); err != nil {
			return p, err
		}
	}
	p.measuredModel, err = newMeasuredModel(p.modelName, p.set)
	return p, err
}

// sized adds --size to the settings.
func (p *profilePlan) sized() error {
	for _, list := range p.set {
		for assignment := range strings.SplitSeq(list, ",") {
			if name, _, _ := strings.Cut(assignment, "="); name == "size" {
				return badUsage("--size %d and --set %s: want one of the two", p.size, assignment)
			}
		}
	}
	setting := fmt.Sprintf("size=%d", p.size)
	var o models.Options
	if err := models.Set(p.modelName, &o, []string{setting}); err != nil {
		return badUsage("--size %d, that is --set %s", p.size, message(err))
	}
	p.set = append(p.set, setting)
	return nil
}
