package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock.example/data"
	"penstock.example/internal/arg"
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
	line, fields, err := readPlan(cmd, f.planned)
	if err != nil {
		return err
	}
	f.plannedFor, f.ofFile = line.Input, planFile{fields: fields}
	return f.take(cmd.Flags(), line)
}

// planFile is a plan's file as it is written.
type planFile struct {
	fields map[string]json.RawMessage // by path, such as input.name
	gave   []string                   // flags
}

// path is where the file says what a flag is.
func (planFile) path(flag string) string {
	switch flag {
	case "stages":
		return "balance"
	case "data":
		return "input.name"
	case "data-dir", "data-set", "window":
		return "input." + strings.TrimPrefix(flag, "data-")
	}
	return strings.ReplaceAll(flag, "-", "_")
}

// says is what the file says of a flag.
func (p planFile) says(flag string) string {
	path := p.path(flag)
	if text, ok := p.fields[path]; ok {
		return path + " is " + arg.Shown(text)
	}
	return path + " is left out"
}

// aFlag is a flag in a text.
var aFlag = regexp.MustCompile(`--([a-z][a-z-]*[a-z])`)

// inPlan says an error of flags that the file of --plan has given by what the file says. Other errors stay as
// they are.
func (f *trainFlags) inPlan(err error) error {
	if err == nil || len(f.ofFile.gave) == 0 || f.planned == auto {
		return err
	}
	text, more, _ := strings.Cut(message(err), "\n")
	if more != "" {
		more = "\n" + more
	}
	found := aFlag.FindAllStringSubmatch(text, -1)
	if len(found) == 0 || strings.HasPrefix(text, "--plan ") { // which speaks of the file
		return err
	}
	if flag := found[0][1]; strings.HasPrefix(text, "--"+flag) && slices.Contains(f.ofFile.gave, flag) {
		_, why, ok := strings.Cut(text, ": ")
		if !ok {
			why = text
		}
		why = strings.Replace(why, "; left out, layers are timed and cut evenly", "", 1)
		return &remedyError{err, fmt.Sprintf("--plan %s: %s: %s%s", f.planned, f.ofFile.says(flag), why, more)}
	}
	var paths []string
	for _, m := range found {
		path := f.ofFile.path(m[1])
		if _, is := f.ofFile.fields[path]; is && slices.Contains(f.ofFile.gave, m[1]) && !slices.Contains(paths, path) {
			paths = append(paths, path)
		}
	}
	if len(paths) == 0 {
		return err
	}
	return &remedyError{err, fmt.Sprintf("%s; --plan %s has these as %s: change them there, or make another plan%s", text, f.planned, strings.Join(paths, ", "), more)}
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
			f.ofFile.gave = append(f.ofFile.gave, p.name)
		case !flag.Changed, p.name == "devices" && f.planned == auto: // which may have them in another order
			if bad := s.Set(p.name, p.value); bad != nil {
				var wrong *pflag.InvalidValueError
				if errors.As(bad, &wrong) {
					bad = wrong.Unwrap()
				}
				err = badUsage("--plan %s: %s; %v", f.planned, f.ofFile.says(p.name), bad)
			}
			if p.name != "checkpoint" { // which no file says
				f.ofFile.gave = append(f.ofFile.gave, p.name)
			}
		case p.name == "set" && sameOptions(line.Model, f.settings, line.Settings): // said otherwise, or a default
		case given != has && (f.planned != auto || !slices.Contains(keptByAuto, p.name)):
			err = badUsage("--%s %s: the plan of --plan %s has %s; want --%[1]s left out, or another plan", p.name, given, f.planned, cmp.Or(has, "none"))
		}
		if err != nil {
			return err
		}
	}
	f.foreseen = line.Peak
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
	if l.Elsewhere {
		return nil
	}
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

// available is how many bytes this process can still take. Tests have others.
var available = torch.AvailableMemory

// checkFree refuses a plan of --plan FILE by which devices of this process hold more than they have free today: by its
// peaks, or by its limits where it has none. CPU devices share what the machine and the process's cgroups leave, those of
// all replicas in this process together. What is free is not known everywhere, and refuses nothing there.
func (j *job) checkFree(context.Context, io.Writer) error {
	if j.planned == "" || j.planned == auto {
		return nil
	}
	each := j.pipelineProcesses()
	placed := pipe.Config{Devices: j.config.Devices, Ranks: j.config.Ranks}
	if placed.Ranks == nil {
		placed.Ranks = pipe.DefaultRanks(placed.Devices, each)
	}
	workers := placed.Workers()
	known := len(j.foreseen) == slices.Max(workers)+1
	var cpus, seen []torch.Device
	all := int64(0)
	for i, d := range placed.Devices {
		if placed.Ranks[i] != j.member.Rank%each || slices.Contains(seen, d) {
			continue
		}
		bytes := cmp.Or(j.limit, j.bytes[d])
		if known {
			bytes = j.foreseen[workers[i]]
		}
		if seen = append(seen, d); bytes <= 0 {
			continue
		}
		h, err := hardware(d)
		switch {
		case err != nil:
			return badUsage("--plan %s: %s", j.planned, message(err))
		case h.Free > 0 && bytes > h.Free:
			return j.tooFull(d.String(), bytes, h.Free)
		case h.Free == 0 && d.Kind == torch.KindCPU:
			cpus, all = append(cpus, d), all+bytes
		}
	}
	here := max(j.here, 1)
	if free, err := available(); err == nil && all > free/int64(here) {
		names := deviceNames(cpus)
		if here > 1 {
			names += fmt.Sprintf(" and those of %s", counted(here-1, "other replica"))
		}
		return j.tooFull(names, int64(here)*all, free)
	}
	return nil
}

// tooFull refuses a plan by which devices hold more bytes than are free there.
func (j *job) tooFull(devices string, bytes, free int64) error {
	return badUsage("--plan %s: by it %s may hold %s, and %s are free there now; want as much free, or a plan with a lower --memory-limit",
		j.planned, devices, arg.Size(bytes), arg.Size(free))
}

// readPlan reads the plan of a model, and its fields as the file has them, by their paths.
func readPlan(cmd *cobra.Command, path string) (line searchLine, fields map[string]json.RawMessage, err error) {
	text, err := readInput(cmd, path)
	if err != nil {
		return line, nil, badUsage("--plan %w", err)
	}
	if line, fields, err = parsePlan(text); err != nil {
		return line, nil, badUsage("--plan %s: %v; penstock plan --model --out writes plans", path, err)
	}
	return line, fields, nil
}

// parsePlan reads the plan of a model as JSON, and its fields by their paths, such as input.name. An error names
// the field, what it is and what is wanted. What only a page shows is not read.
func parsePlan(text []byte) (line searchLine, fields map[string]json.RawMessage, err error) {
	type field struct {
		name string
		to   any
		want string
	}
	const word, list, whole, number = "a text, in quotes", "a list of texts", "a whole number", "a number"
	of := []field{{"balance", &line.Balance, "the number of layers of each stage, such as [3,3]"}, {"schedule", &line.Schedule, word}, {"chunks", &line.Chunks, whole},
		{"step_us", &line.Step, number}, {"lower_bound_us", &line.LowerBound, number}, {"peak_bytes", &line.Peak, "a list of whole numbers"}, {"proved", &line.Proved, "true or false"},
		{"virtual", &line.Virtual, whole}, {"replicas", &line.Replicas, whole}, {"threads", &line.Threads, whole}, {"devices", &line.Devices, list}, {"elsewhere", &line.Elsewhere, "true or false"}, {"model", &line.Model, word},
		{"set", &line.Settings, list}, {"batch", &line.Batch, whole}, {"rows", &line.Rows, whole}, {"input", nil, ""}, {"memory_limit", &line.Limit, "a whole number of bytes"}, {"bytes", &line.Bytes, "a list of whole numbers"},
		{"optimizer", &line.Optimizer, word}, {"momentum", &line.Momentum, number}, {"train_only", &line.TrainOnly, list}, {"autocast", &line.Autocast, "bfloat16 or float16, in quotes"}, {"page", nil, ""}}
	fields = map[string]json.RawMessage{}
	read := func(at string, text []byte, of []field) error {
		var names []string
		for _, f := range of {
			names = append(names, f.name)
		}
		have, err := arg.Object(at, text, names...)
		if err != nil {
			return err
		}
		for _, f := range of {
			value, path := have[f.name], arg.Path(at, f.name)
			if arg.Absent(value) {
				continue
			}
			if fields[path] = value; f.to != nil && json.Unmarshal(value, f.to) != nil {
				return fmt.Errorf("%s is %s; want %s", path, arg.Shown(value), f.want)
			}
		}
		return nil
	}
	if err := read("", text, of); err != nil {
		return line, nil, err
	}
	if input := fields["input"]; input != nil {
		line.Input = &dataLine{}
		in := line.Input
		if err := read("input", input, []field{{"name", &in.Name, word}, {"dir", &in.Dir, word}, {"set", &in.Settings, list}, {"window", &in.Window, whole},
			{"shape", &in.Shape, "a list of whole numbers"}, {"dtype", &in.DType, word}, {"outputs", &in.Outputs, whole}, {"task", &in.Task, word}}); err != nil {
			return line, nil, err
		}
	}
	return line, fields, line.check(fields)
}

// check refuses a plan that makes no sense, with the field that is wrong.
func (l searchLine) check(fields map[string]json.RawMessage) error {
	refuse := func(path, format string, args ...any) error {
		why := fmt.Sprintf(format, args...)
		if text, ok := fields[path]; ok {
			return fmt.Errorf("%s is %s%s", path, arg.Shown(text), why)
		}
		return fmt.Errorf("%s is missing%s", path, why)
	}
	named, err := schedule.Named(l.Schedule)
	if err != nil {
		return refuse("schedule", "; %s", arg.OneOf(l.Schedule, scheduleNames()))
	}
	if l.Model == "" {
		return refuse("model", ": it was made from a chain, whose layers are not those of a model; want a plan of penstock plan --model")
	}
	for _, n := range []struct {
		path          string
		is, least, at int64
	}{{"batch", int64(l.Batch), 1, math.MaxInt32}, {"chunks", int64(l.Chunks), 1, math.MaxInt32}, {"threads", int64(l.Threads), 0, pipe.MaxThreads}, {"virtual", int64(l.Virtual), 0, math.MaxInt32},
		{"memory_limit", l.Limit, 0, math.MaxInt64}, {"replicas", int64(l.Replicas), 0, 1}} {
		switch {
		case n.is < n.least:
			return refuse(n.path, "; want a whole number from 1")
		case n.is > n.at:
			return refuse(n.path, "; want at most %d", n.at)
		}
	}
	virtual := max(l.Virtual, 1)
	switch {
	case len(l.Balance) == 0 || slices.Min(l.Balance) < 1:
		return refuse("balance", "; want the number of layers of each stage, each from 1")
	case len(l.Balance)%virtual != 0:
		return refuse("balance", ": %d stages are not %d on each device; want as many as virtual is, or a multiple", len(l.Balance), virtual)
	case named.Virtual > 0 && named.Virtual != virtual:
		return refuse("virtual", ", and the schedule %s has %s on each device; want that", l.Schedule, counted(named.Virtual, "stage"))
	case l.named() != nil && len(l.Devices)*virtual != len(l.Balance):
		return refuse("devices", ": %d stages are not %d on each of %d devices", len(l.Balance), virtual, len(l.Devices))
	case distinct(l.named()) != len(l.named()):
		return refuse("devices", "; want each of them once")
	case l.Bytes != nil && (len(l.Bytes) == 0 || len(l.Bytes) != len(l.named()) || slices.Min(l.Bytes) < 1):
		return refuse("bytes", "; want a number from 1 for each of devices")
	case l.Batch%l.Chunks != 0:
		return refuse("chunks", ": %d micro-batches do not divide a batch of %d rows; want a divisor", l.Chunks, l.Batch)
	case l.Rows != 0 && l.Rows != l.Batch/l.Chunks:
		return refuse("rows", ", and %d micro-batches of a batch of %d have %d; want that, or it left out", l.Chunks, l.Batch, l.Batch/l.Chunks)
	case l.Input == nil:
	case len(l.Input.Shape) == 0 || slices.Min(l.Input.Shape) < 1:
		return refuse("input.shape", "; want the sizes of a row, each from 1")
	case l.Input.Outputs < 1:
		return refuse("input.outputs", "; want a whole number from 1")
	}
	return nil
}
