package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock/schedule"
)

// takePlan gives the flags of penstock train what the plan of --plan FILE says, which penstock plan --model
// has written. A flag that says something else is a usage error. What auto decides is not known yet: see
// choosePlan.
func (f *trainFlags) takePlan(cmd *cobra.Command) error {
	if f.planned == "" || f.planned == auto {
		return nil
	}
	line, err := readPlan(cmd, f.planned)
	if err != nil {
		return err
	}
	return f.take(cmd.Flags(), line)
}

// take gives the flags what a plan says.
func (f *trainFlags) take(s *pflag.FlagSet, line searchLine) (err error) {
	for _, p := range line.flags() {
		flag := s.Lookup(p.name)
		given := strings.Trim(flag.Value.String(), "[]")
		if p.name == "memory-limit" { // a size may be written in several ways
			given = fmt.Sprint(f.limit)
		}
		switch {
		case !flag.Changed:
			if bad := s.Set(p.name, p.value); bad != nil {
				err = badUsage("--plan %s: its %s is %q: %v", f.planned, p.name, p.value, bad)
			}
		case given != p.value && (f.planned != auto || !slices.Contains(keptByAuto, p.name)):
			err = badUsage("--%s %s: the plan of --plan %s has %s; want --%[1]s left out, or another plan", p.name, given, f.planned, p.value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

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
	if l.Momentum != nil {
		out = append(out, planFlag{"momentum", fmt.Sprint(*l.Momentum)})
	}
	return append(out, planFlag{"checkpoint", policy})
}

// readPlan reads the plan of a model.
func readPlan(cmd *cobra.Command, path string) (line searchLine, err error) {
	text, err := readInput(cmd, path)
	if err != nil {
		return line, err
	}
	if line, err = parsePlan(text); err != nil {
		return line, badUsage("--plan %s: %v; want a file that penstock plan --model has written with --out", path, err)
	}
	return line, nil
}

// parsePlan reads the plan of a model as JSON.
func parsePlan(text []byte) (line searchLine, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&line); err != nil {
		return line, errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return line, errors.New("something follows the plan")
	}
	named, err := schedule.Named(line.Schedule)
	switch {
	case err != nil:
		return line, errors.New(message(err))
	case line.Model == "":
		return line, errors.New("it was made from a chain, whose layers are not those of a model")
	case line.Batch < 1 || line.Chunks < 1 || line.Threads < 0 || line.Virtual < 0 || line.Limit < 0 || line.Replicas > 1:
		return line, errors.New("a number in it makes no sense")
	case line.Batch%line.Chunks != 0:
		return line, fmt.Errorf("%d micro-batches do not divide a batch of %d rows", line.Chunks, line.Batch)
	case len(line.Balance) == 0 || slices.Min(line.Balance) < 1:
		return line, fmt.Errorf("its balance is %v", line.Balance)
	case len(line.Balance)%max(line.Virtual, 1) != 0 || named.Virtual > 0 && named.Virtual != max(line.Virtual, 1):
		return line, fmt.Errorf("%d stages are not %d on each device", len(line.Balance), max(line.Virtual, 1))
	}
	return line, nil
}
