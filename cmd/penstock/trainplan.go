package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock.example/data"
	"penstock.example/models"
	"penstock.example/pipe"
	"penstock.example/schedule"
	"penstock.example/torch"
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
	f.plannedFor = line.Input
	return f.take(cmd.Flags(), line)
}

// take gives the flags what a plan says.
func (f *trainFlags) take(s *pflag.FlagSet, line searchLine) (err error) {
	wanted := line.flags()
	if of := line.Input; of != nil && of.Name != "" && !s.Changed("data") {
		for _, p := range of.flags() {
			if !s.Changed(p.name) {
				wanted = append(wanted, p)
			}
		}
	}
	for _, p := range wanted {
		flag := s.Lookup(p.name)
		given := strings.Trim(flag.Value.String(), "[]")
		if p.name == "memory-limit" && flag.Changed { // a size may be written in several ways
			given = fmt.Sprint(f.limit)
		}
		if p.name == "devices" {
			given = deviceNames(f.config.Devices)
		}
		if p.name == "momentum" && flag.Changed {
			given = fmt.Sprint(f.update.Momentum)
		}
		has := cmp.Or(p.value, p.usual)
		switch {
		case !flag.Changed && p.value == "":
		case !flag.Changed && p.name == "train-only": // a name by itself each time
			for name := range strings.SplitSeq(p.value, ",") {
				err = errors.Join(err, s.Set(p.name, name))
			}
		case !flag.Changed, p.name == "devices" && f.planned == auto: // which may have them in another order
			if bad := s.Set(p.name, p.value); bad != nil {
				err = badUsage("--plan %s: its %s is %q: %v", f.planned, p.name, p.value, bad)
			}
		case p.name == "set" && sameOptions(line.Model, f.settings, line.Settings): // said otherwise, or a default
		case given != has && (f.planned != auto || !slices.Contains(keptByAuto, p.name)):
			err = badUsage("--%s %s: the plan of --plan %s has %s; want --%[1]s left out, or another plan", p.name, given, f.planned, cmp.Or(has, "none"))
		}
		if err != nil {
			return err
		}
	}
	if f.bytes = nil; line.Bytes != nil {
		f.bytes = map[torch.Device]int64{}
		for i, d := range line.named() {
			f.bytes[d] = line.Bytes[i]
		}
	}
	return nil
}

// sameOptions says that two lists of settings make the same model.
func sameOptions(model string, a, b []string) bool {
	list := func(set []string) []models.Setting {
		var o models.Options
		if models.Set(model, &o, set) != nil {
			return nil
		}
		all, err := models.Settings(model, o)
		if err != nil {
			return nil
		}
		return all
	}
	all := list(a)
	return all != nil && slices.Equal(all, list(b))
}

// planFlag is what a plan says of a flag, and what the flag has where the plan leaves it out.
type planFlag struct{ name, value, usual string }

// flags are what penstock train is to have of a plan. The order is that in which they are compared.
func (l searchLine) flags() []planFlag {
	says := func(name, value string) planFlag { return planFlag{name: name, value: value} }
	limit, momentum := "", ""
	if l.Limit > 0 {
		limit = fmt.Sprint(l.Limit)
	}
	if l.Momentum != nil {
		momentum = fmt.Sprint(*l.Momentum)
	}
	threads, virtual := max(l.Threads, 1), max(l.Virtual, 1)
	list := []planFlag{says("model", l.Model), says("set", strings.Join(l.Settings, ",")), says("batch", fmt.Sprint(l.Batch)),
		says("optimizer", l.Optimizer), says("balance", numbers(l.Balance)), says("stages", fmt.Sprint(len(l.Balance)/virtual)),
		says("schedule", l.Schedule), says("virtual", fmt.Sprint(virtual)), says("chunks", fmt.Sprint(l.Chunks)),
		says("threads", fmt.Sprint(threads)), says("autocast", fmt.Sprint(l.Autocast)),
		says("train-only", strings.Join(l.TrainOnly, ",")), says("memory-limit", limit),
		{"momentum", momentum, fmt.Sprint(usualMomentum(l.Optimizer))}, says("checkpoint", string(pipe.Optimal))}
	if named := l.named(); named != nil {
		list = append(list, says("devices", deviceNames(named)))
	}
	return list
}

// named are the devices of the plan, if they are those of this machine that --devices has named.
func (l searchLine) named() (list []torch.Device) {
	for _, name := range l.Devices {
		d, err := torch.ParseDevice(name)
		if err != nil || d.String() != name {
			return nil
		}
		list = append(list, d)
	}
	return list
}

// dataLine is the data that a plan is for, as a file has it. Without a name they are made up, as the model
// usually reads them.
type dataLine struct {
	Name     string   `json:"name,omitempty"`
	Dir      string   `json:"dir,omitempty"`
	Settings []string `json:"set,omitempty"`
	Window   int      `json:"window,omitempty"`
	Shape    []int64  `json:"shape"` // of a row
	DType    string   `json:"dtype"`
	Outputs  int      `json:"outputs"` // classes, or numbers of regression
	Task     string   `json:"task"`
}

// describeData describes samples of the data that flags name.
func describeData(f dataFlags, info data.Info) *dataLine {
	l := &dataLine{Shape: info.Input.Shape, DType: info.Input.Kind.String(), Outputs: info.Outputs(), Task: string(info.Task())}
	if f.dataName != "" {
		l.Name, l.Dir, l.Settings = f.dataName, f.dataDir, f.dataSettings
	}
	if slices.Contains(windowed, f.dataName) {
		l.Window = f.window
	}
	return l
}

// flags are what penstock train is to have of the data where it has no --data.
func (l dataLine) flags() []planFlag {
	out := []planFlag{{name: "data", value: l.Name}}
	if l.Dir != "" {
		out = append(out, planFlag{name: "data-dir", value: l.Dir})
	}
	if len(l.Settings) > 0 {
		out = append(out, planFlag{name: "data-set", value: strings.Join(l.Settings, ",")})
	}
	if l.Window > 0 {
		out = append(out, planFlag{name: "window", value: fmt.Sprint(l.Window)})
	}
	return out
}

// String is the data in words.
func (l dataLine) String() string {
	of := "classes"
	if l.Task == string(data.Regression) {
		of = "numbers to predict"
	}
	return fmt.Sprintf("%v of %s and %d %s", l.Shape, l.DType, l.Outputs, of)
}

// checkPlanned refuses data that are not those of --plan FILE.
func (j *job) checkPlanned(info data.Info) error {
	was, now := j.plannedFor, describeData(j.dataFlags, info)
	if was == nil || was.String() == now.String() && was.Task == now.Task {
		return nil
	}
	again := []string{"penstock", "plan", "--model", j.modelName}
	for _, f := range now.flags() {
		again = append(again, "--"+f.name, f.value)
	}
	return badUsage("--plan %s: it was made for inputs %v, and --data %s has %v; want a plan made with the same --data, as by %s",
		j.planned, was, j.dataName, now, shellQuoted(again))
}

// readPlan reads the plan of a model.
func readPlan(cmd *cobra.Command, path string) (line searchLine, err error) {
	text, err := readInput(cmd, path)
	if err != nil {
		return line, badUsage("--plan %w", err)
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
	case line.Input != nil && (len(line.Input.Shape) == 0 || slices.Min(line.Input.Shape) < 1 || line.Input.Outputs < 1), line.Rows != 0 && line.Rows*line.Chunks != line.Batch:
		return line, errors.New("its input or the rows of its micro-batches make no sense")
	case line.Batch%line.Chunks != 0:
		return line, fmt.Errorf("%d micro-batches do not divide a batch of %d rows", line.Chunks, line.Batch)
	case len(line.Balance) == 0 || slices.Min(line.Balance) < 1:
		return line, fmt.Errorf("its balance is %v", line.Balance)
	case line.named() != nil && len(line.Devices)*max(line.Virtual, 1) != len(line.Balance):
		return line, fmt.Errorf("%d stages are not %d on each of %d devices", len(line.Balance), max(line.Virtual, 1), len(line.Devices))
	case distinct(line.named()) != len(line.named()):
		return line, fmt.Errorf("its devices are %v, of which each has to be there once", line.Devices)
	case line.Bytes != nil && (len(line.Bytes) != len(line.named()) || slices.Min(line.Bytes) < 1):
		return line, errors.New("its bytes are not those of its devices")
	case len(line.Balance)%max(line.Virtual, 1) != 0 || named.Virtual > 0 && named.Virtual != max(line.Virtual, 1):
		return line, fmt.Errorf("%d stages are not %d on each device", len(line.Balance), max(line.Virtual, 1))
	}
	return line, nil
}
