package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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
	return f.take(cmd.Flags(), line)
}

// take sets flags from a plan. A flag with another value is a usage error, but for data and for what
// --plan auto has planned by.
func (f *trainFlags) take(s *pflag.FlagSet, line searchLine) error {
	flags := line.flags()
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		flag, has := s.Lookup(name), flags[name]
		is, self := strings.Trim(flag.Value.String(), "[]"), f.planned == auto
		switch {
		case !flag.Changed && has == "", flag.Changed && is == has,
			flag.Changed && (name == "data" || slices.Contains(dataOnly, name) || self &&
				slices.Contains(keptByAuto, name)):
			continue
		case flag.Changed && !(self && name == "devices"): // which may have them in another order
			return badUsage("--%s %s: the plan of --plan %s has %s; want --%[1]s left out, or another plan",
				name, is, f.planned, cmp.Or(has, "none"))
		}
		values := []string{has}
		if flag.Value.Type() == repeatedType {
			values = strings.Split(has, ",")
		}
		for _, v := range values {
			if err := s.Set(name, v); err != nil {
				var wrong *pflag.InvalidValueError
				if errors.As(err, &wrong) {
					err = wrong.Unwrap()
				}
				return badUsage("--plan %s: %s is %s; %v", f.planned, name, v, err)
			}
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

// flags are what penstock train is to have of a plan; "" is the flag left out.
func (l searchLine) flags() map[string]string {
	virtual := max(l.Virtual, 1)
	text := func(x any) string { return strings.Trim(fmt.Sprint(x), "[]") }
	out := map[string]string{
		"model": l.Model, "set": strings.Join(l.Settings, ","), "batch": text(l.Batch),
		"optimizer": l.Optimizer,
		"balance":   numbers(l.Balance), "stages": text(len(l.Balance) / virtual), "schedule": l.Schedule,
		"virtual": text(virtual), "chunks": text(l.Chunks), "threads": text(max(l.Threads, 1)),
		"autocast": text(l.Autocast), "train-only": strings.Join(l.TrainOnly, ","),
		"checkpoint":   string(pipe.Optimal),
		"memory-limit": strings.TrimPrefix(text(l.Limit), "0"), "momentum": text(usualMomentum(l.Optimizer)),
	}
	if l.Momentum != nil {
		out["momentum"] = text(*l.Momentum)
	}
	if named := l.named(); named != nil {
		out["devices"] = deviceNames(named)
	}
	if in := l.Input; in != nil && in.Name != "" {
		out["data"], out["data-dir"], out["data-set"] = in.Name, in.Dir, strings.Join(in.Settings, ",")
		out["window"] = strings.TrimPrefix(text(in.Window), "0")
	}
	return out
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

// check refuses a plan that makes no sense, with the field that is wrong. What its flags refuse is left
// to them.
func (l searchLine) check() error {
	virtual, named := max(l.Virtual, 1), l.named()
	switch {
	case l.Model == "":
		return errors.New("model is missing; want a plan of penstock plan --model; the layers of a chain " +
			"are " +
			"not those of a model")
	case l.Replicas > 1:
		return fmt.Errorf("replicas is %d; want a plan of one pipeline", l.Replicas)
	case len(l.Balance) == 0 || len(l.Balance)%virtual != 0:
		return fmt.Errorf("balance is %v; want layers of %d stages on each device", l.Balance, virtual)
	case named != nil && (len(l.Devices)*virtual != len(l.Balance) || distinct(named) != len(named)):
		return fmt.Errorf("devices is %v; want each device once, as many as the balance has", l.Devices)
	case l.Bytes != nil && len(l.Bytes) != len(named):
		return fmt.Errorf("bytes is %v; want one for each of devices", l.Bytes)
	}
	return nil
}
