package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"penstock/schedule"
)

// takePlan gives the flags of penstock train what the plan of --plan says: one in a file that penstock
// plan --model has written, or with auto one that is made now. A flag that says something else is a usage
// error.
func (f *trainFlags) takePlan(cmd *cobra.Command) error {
	if f.planned == "" {
		return nil
	}
	s := cmd.Flags()
	var line searchLine
	var err error
	if f.planned == auto {
		line, err = f.planNow(cmd)
	} else {
		line, err = readPlan(cmd, f.planned)
	}
	if err != nil {
		return err
	}
	for _, p := range line.flags() {
		flag := s.Lookup(p.name)
		given := strings.Trim(flag.Value.String(), "[]")
		if p.name == "memory-limit" { // a size may be written in several ways
			given = fmt.Sprint(f.limit)
		}
		switch {
		case !flag.Changed:
			err = s.Set(p.name, p.value)
		case given != p.value && (f.planned != auto || !slices.Contains(keptByAuto, p.name)):
			err = badUsage("--%s %s: the plan of --plan %s has %s; want --%[1]s left out, or another plan", p.name, given, f.planned, p.value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// keptByAuto are the flags that a plan that is made now keeps.
var keptByAuto = []string{"model", "set", "batch", "optimizer", "autocast", "memory-limit", "chunks", "threads", "schedule"}

// planFlag is what a plan says of a flag.
type planFlag struct{ name, value string }

// flags are what penstock train is to have of a plan. The order is that in which they are compared.
func (l searchLine) flags() []planFlag {
	out := []planFlag{{"model", l.Model}}
	if len(l.Settings) > 0 {
		out = append(out, planFlag{"set", strings.Join(l.Settings, ",")})
	}
	threads, virtual, policy := max(l.Threads, 1), max(l.Virtual, 1), "never"
	out = append(out, planFlag{"batch", fmt.Sprint(l.Batch)}, planFlag{"optimizer", l.Optimizer}, planFlag{"balance", numbers(l.Balance)},
		planFlag{"schedule", l.Schedule}, planFlag{"virtual", fmt.Sprint(virtual)}, planFlag{"chunks", fmt.Sprint(l.Chunks)},
		planFlag{"threads", fmt.Sprint(threads)}, planFlag{"autocast", fmt.Sprint(l.Autocast)})
	if l.Limit > 0 {
		policy = "optimal"
		out = append(out, planFlag{"memory-limit", fmt.Sprint(l.Limit)})
	}
	return append(out, planFlag{"checkpoint", policy})
}

// readPlan reads the plan of a model.
func readPlan(cmd *cobra.Command, path string) (line searchLine, err error) {
	text, err := readInput(cmd, path)
	if err != nil {
		return line, err
	}
	refuse := func(format string, args ...any) error {
		return badUsage("--plan %s: %s; want a file that penstock plan --model has written with --out", path, fmt.Sprintf(format, args...))
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&line); err != nil {
		return line, refuse("%s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return line, refuse("something follows the plan")
	}
	named, err := schedule.Named(line.Schedule)
	switch {
	case err != nil:
		return line, refuse("%s", message(err))
	case line.Model == "":
		return line, refuse("it was made from a chain, whose layers are not those of a model")
	case line.Batch < 1 || line.Chunks < 1 || line.Threads < 0 || line.Virtual < 0 || line.Limit < 0 || line.Replicas > 1:
		return line, refuse("a number in it makes no sense")
	case len(line.Balance) == 0 || slices.Min(line.Balance) < 1:
		return line, refuse("its balance is %v", line.Balance)
	case len(line.Balance)%max(line.Virtual, 1) != 0 || named.Virtual > 0 && named.Virtual != max(line.Virtual, 1):
		return line, refuse("%d stages are not %d on each device", len(line.Balance), max(line.Virtual, 1))
	}
	return line, nil
}

// planNow plans the model of the command line, as it is to be trained, on the cores of this machine.
func (f *trainFlags) planNow(cmd *cobra.Command) (line searchLine, err error) {
	s := cmd.Flags()
	if f.modelName == "" {
		return line, badUsage("--model is needed with --plan auto")
	}
	if p := (plan{trainFlags: *f, getenv: os.Getenv}); p.checkGroup(s) == nil && p.grouped {
		return line, badUsage("--plan auto: several processes would each find a plan of their own; want a file of penstock plan, the same for all")
	}
	search := searchFlags{batch: f.batch, limit: f.limit, of: modelFlags{modelName: f.modelName, set: f.settings,
		optimizer: f.optimizerName, autocast: f.config.Autocast, repeats: 3, seed: f.config.Seed}}
	if s.Changed("stages") {
		search.stages = f.stages
	}
	if s.Changed("chunks") {
		search.chunks = f.config.Chunks
	}
	if s.Changed("threads") {
		search.of.threads = f.config.Threads
	}
	if s.Changed("schedule") {
		search.schedules = []string{f.schedule}
	}
	job, err := search.measure(cmd)
	if err != nil {
		return line, err
	}
	found, err := job.search(cmd.Context(), cmd.ErrOrStderr())
	if err != nil {
		return line, err
	}
	line = job.line(found)
	fmt.Fprintf(cmd.ErrOrStderr(), "--plan auto: %s with --balance %s --chunks %d --threads %d, %s a step\n",
		line.Schedule, numbers(line.Balance), line.Chunks, max(line.Threads, 1), micros(line.Step))
	return line, nil
}
