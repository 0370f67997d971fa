package main

import (
	"fmt"
	"math"
	"strings"

	"penstock/models"
	"penstock/pipe"
)

// profilePlan is what a command line of penstock profile asks for.
type profilePlan struct {
	profileFlags
	measuredModel
}

// plan checks the flags. Its errors are usage errors of one line.
func (f profileFlags) plan(given func(flag string) bool) (profilePlan, error) {
	p := profilePlan{profileFlags: f}
	if err := checkTable(p.format); err != nil {
		return p, err
	}
	if !given("model") {
		return p, badUsage("--model is needed: one of %s", strings.Join(models.Names(), ", "))
	}
	switch {
	case p.lossName != "cross-entropy" && p.lossName != "none":
		return p, badUsage("--loss %q: want cross-entropy or none", p.lossName)
	case given("out") && p.out == "":
		return p, badUsage("--out is an empty name; want a file, or - for standard output")
	case p.out == "-" && given("format") && p.format == "table":
		return p, badUsage("--out - and --format table: standard output is for one of the two; want --format left out, or a file")
	case p.out == "-":
		p.format = "json"
	}
	for _, n := range []struct {
		flag        string
		value, most int
	}{{"batch", p.batch, math.MaxInt32}, {"threads", p.threads, pipe.MaxThreads}, {"repeats", p.repeats, math.MaxInt32}, {"max-units", p.maxUnits, math.MaxInt32}} {
		if n.value < 1 {
			return p, badUsage("--%s %d: want at least 1", n.flag, n.value)
		}
		if n.value > n.most {
			return p, badUsage("--%s %d: want at most %d", n.flag, n.value, n.most)
		}
	}
	var err error
	if given("size") {
		if err = p.sized(); err != nil {
			return p, err
		}
	}
	p.measuredModel, err = newMeasuredModel(p.modelName, p.set)
	return p, err
}

// sized adds --size to the settings.
func (p *profilePlan) sized() error {
	if _, err := models.Describe(p.modelName); err != nil {
		return nil // newMeasuredModel says so
	}
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
