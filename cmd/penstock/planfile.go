package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock.example/data"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// takePlan sets flags from the file of --plan, which penstock plan --model writes. With --plan auto
// applyAutoPlan sets them later.
func (f *trainFlags) takePlan(cmd *cobra.Command) error {
	if f.planned == "" || f.planned == auto {
		return nil
	}
	text, err := readInput(cmd, f.planned)
	if err != nil {
		return badUsage("--plan %w", err)
	}
	line, err := parsePlan(text)
	if err != nil {
		return badUsage("--plan %s: %w; penstock plan --model --out writes plans", f.planned, err)
	}
	f.plannedFor = line.Input
	return f.take(cmd.Flags(), line)
}

// take sets flags from a plan. A flag with another value is a usage error. --plan auto has made its plan
// from the flags of keptByAuto.
func (f *trainFlags) take(s *pflag.FlagSet, line searchLine) error {
	for _, p := range line.flags() {
		flag := s.Lookup(p.name)
		has := cmp.Or(p.value, p.usual)
		var err error
		switch {
		case !flag.Changed && p.value == "", flag.Changed && p.optional:
			continue
		case !flag.Changed && flag.Value.Type() == repeatedType && p.name == "train-only": // a name each time
			for name := range strings.SplitSeq(p.value, ",") {
				err = errors.Join(err, s.Set(p.name, name))
			}
		case !flag.Changed, p.name == "devices" && f.planned == auto: // which may have them in another order
			err = s.Set(p.name, p.value)
		case f.planned == auto && slices.Contains(keptByAuto, p.name), f.says(s, p.name) == has:
			continue
		default:
			return badUsage("--%s %s: the plan of --plan %s has %s; want --%[1]s left out, or another plan",
				p.name, f.says(s, p.name), f.planned, cmp.Or(has, "none"))
		}
		if err != nil {
			var wrong *pflag.InvalidValueError
			if errors.As(err, &wrong) {
				err = wrong.Unwrap()
			}
			return badUsage("--plan %s: %s is %s; %v", f.planned, p.name, p.value, err)
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

// says is the value of a flag, as a plan writes it.
func (f *trainFlags) says(s *pflag.FlagSet, name string) string {
	switch name {
	case "memory-limit":
		return fmt.Sprint(f.limit)
	case "devices":
		return deviceNames(f.config.Devices)
	case "momentum":
		return fmt.Sprint(f.update.Momentum)
	}
	return strings.Trim(s.Lookup(name).Value.String(), "[]")
}

// planFlag is a flag with its value in a plan, and its default where the plan has none.
type planFlag struct {
	name, value, usual string
	optional           bool // another value may be given
}

// flags are what penstock train is to have of a plan. The order is that in which they are compared.
func (l searchLine) flags() (list []planFlag) {
	says := func(name string, value any) {
		list = append(list, planFlag{name: name,
			value: fmt.Sprint(value)})
	}
	virtual := max(l.Virtual, 1)
	says("model", l.Model)
	says("set", strings.Join(l.Settings, ","))
	says("batch", l.Batch)
	says("optimizer", l.Optimizer)
	says("balance", numbers(l.Balance))
	says("stages", len(l.Balance)/virtual)
	says("schedule", l.Schedule)
	says("virtual", virtual)
	says("chunks", l.Chunks)
	says("threads", max(l.Threads, 1))
	says("autocast", l.Autocast)
	says("train-only", strings.Join(l.TrainOnly, ","))
	limit, momentum := "", ""
	if l.Limit > 0 {
		limit = fmt.Sprint(l.Limit)
	}
	if l.Momentum != nil {
		momentum = fmt.Sprint(*l.Momentum)
	}
	says("memory-limit", limit)
	list = append(list, planFlag{name: "momentum", value: momentum,
		usual: fmt.Sprint(usualMomentum(l.Optimizer))})
	says("checkpoint", pipe.Optimal)
	if named := l.named(); named != nil {
		says("devices", deviceNames(named))
	}
	if l.Input != nil && l.Input.Name != "" {
		list = append(list, l.Input.flags()...)
	}
	return list
}

// named returns the devices of a plan for named devices of this machine.
func (l searchLine) named() (list []torch.Device) {
	for _, name := range l.Devices {
		d, err := torch.ParseDevice(name)
		if err != nil || d.String() != name || l.Elsewhere {
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
	l := &dataLine{Shape: info.Input.Shape, DType: info.Input.Kind.String(), Outputs: info.Outputs(),
		Task: string(info.Task())}
	if f.dataName != "" {
		l.Name, l.Dir, l.Settings = f.dataName, f.dataDir, f.dataSettings
	}
	if slices.Contains(windowed, f.dataName) {
		l.Window = f.window
	}
	return l
}

// flags are what penstock train is to have of the data where it has no --data of its own.
func (l dataLine) flags() []planFlag {
	window := ""
	if l.Window > 0 {
		window = fmt.Sprint(l.Window)
	}
	return []planFlag{{"data", l.Name, "", true}, {"data-dir", l.Dir, "", true},
		{"data-set", strings.Join(l.Settings, ","), "", true}, {"window", window, "", true}}
}

// String is the data in words.
func (l dataLine) String() string {
	of := "classes"
	if l.Task == string(data.Regression) {
		of = "numbers to predict"
	}
	return fmt.Sprintf("%v of %s and %d %s", l.Shape, l.DType, l.Outputs, of)
}

// checkPlanned refuses other data than the plan in the file was made for.
func (j *job) checkPlanned(info data.Info) error {
	was, now := j.plannedFor, describeData(j.dataFlags, info)
	if was == nil || was.String() == now.String() && was.Task == now.Task {
		return nil
	}
	return badUsage("--plan %s: it was made for inputs %v, and --data %s has %v; want a plan made with "+
		"the same --data", j.planned, was, j.dataName, now)
}

// parsePlan reads the plan of a model. Errors name the field and a remedy.
func parsePlan(text []byte) (line searchLine, err error) {
	page := struct {
		*searchLine
		Page json.RawMessage `json:"page"` // for penstock report alone
	}{searchLine: &line}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&page); err != nil {
		return line, errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	return line, line.check()
}

// check refuses a plan that makes no sense, with the field that is wrong. What its flags refuse is left to them.
func (l searchLine) check() error {
	virtual, named := max(l.Virtual, 1), l.named()
	for _, rule := range []struct {
		ok    bool
		field string
		value any
		want  string
	}{
		{l.Model != "", "model", "missing", "want a plan of penstock plan --model; the layers of a chain are " +
			"not those of a model"},
		{l.Replicas <= 1, "replicas", l.Replicas, "want a plan of one pipeline"},
		{len(l.Balance) > 0 && len(l.Balance)%virtual == 0, "balance", l.Balance,
			fmt.Sprintf("want layers of %d stages on each device", virtual)},
		{named == nil || len(l.Devices)*virtual == len(l.Balance) && distinct(named) == len(named),
			"devices", l.Devices, "want each device once, as many as the balance has"},
		{l.Bytes == nil || len(l.Bytes) == len(named), "bytes", l.Bytes, "want one for each of devices"},
	} {
		if !rule.ok {
			return fmt.Errorf("%s is %v; %s", rule.field, rule.value, rule.want)
		}
	}
	return nil
}
