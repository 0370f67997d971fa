package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
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
		case f.planned == auto && slices.Contains(keptByAuto, p.name), f.says(s, p.name) == has,
			// said otherwise, or a default
			p.name == "set" && sameOptions(line.Model, f.settings, line.Settings):
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
		f.byPlan = append(f.byPlan, p.name)
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

// inPlan names the file of --plan in an error about a flag that it has given. Other errors stay as they are.
func (f *trainFlags) inPlan(err error) error {
	if err == nil || f.planned == auto {
		return err
	}
	text := message(err)
	for _, name := range f.byPlan {
		if strings.HasPrefix(text, "--"+name+" ") || strings.HasPrefix(text, "--"+name+":") {
			return &remedyError{err, fmt.Sprintf("--plan %s has %s", f.planned, text)}
		}
	}
	return err
}

// sameOptions says that two lists of settings make the same model.
func sameOptions(model string, a, b []string) bool {
	list := func(set []string) (all []models.Setting) {
		var o models.Options
		if models.Set(model, &o, set) == nil {
			all, _ = models.Settings(model, o) // nil is no list
		}
		return all
	}
	all := list(a)
	return all != nil && slices.Equal(all, list(b))
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
	again := []string{"penstock", "plan", "--model", j.modelName}
	for _, f := range now.flags() {
		if f.value != "" {
			again = append(again, "--"+f.name, f.value)
		}
	}
	return badUsage("--plan %s: it was made for inputs %v, and --data %s has %v; want a plan made with "+
		"the same --data, as by %s",
		j.planned, was, j.dataName, now, shellQuoted(again))
}

// available is how many bytes this process can still take. Tests have others.
var available = torch.AvailableMemory

// checkFree refuses a plan in a file if devices of this process hold more than they have free now, by its
// peaks or else by its limits. All CPU devices of a process share the free memory of the machine and of
// the cgroups. Where the free memory is unknown nothing is refused.
func (j *job) checkFree(context.Context, io.Writer) error {
	if j.planned == "" || j.planned == auto {
		return nil
	}
	refuse := func(devices string, bytes, free int64) error {
		return badUsage("--plan %s: by it %s may hold %s, and %s are free there now; want as much "+
			"free, or a "+
			"plan with a lower --memory-limit",
			j.planned, devices, arg.Size(bytes), arg.Size(free))
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
			return refuse(d.String(), bytes, h.Free)
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
		return refuse(names, int64(here)*all, free)
	}
	return nil
}

// parsePlan reads the plan of a model. Errors name the field and a remedy.
func parsePlan(text []byte) (line searchLine, err error) {
	page := struct {
		*searchLine
		Page json.RawMessage `json:"page"` // for penstock report alone
	}{searchLine: &line}
	if err := decodeStrictly(text, &page); err != nil {
		return line, err
	}
	return line, line.check()
}

// decodeStrictly reads one JSON value without fields that are not known.
func decodeStrictly(text []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	err := d.Decode(to)
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong):
		want := map[reflect.Kind]string{reflect.Int: "a whole number", reflect.Int64: "a whole number",
			reflect.Slice:  "a list",
			reflect.String: "a text in quotes", reflect.Float64: "a number",
			reflect.Bool: "true or false"}[wrong.Type.Kind()]
		return fmt.Errorf("%s is a %s; want %s", strings.TrimPrefix(wrong.Field, "searchLine."), wrong.Value,
			cmp.Or(want, "an object"))
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the file ends within a value")
	case err != nil:
		return errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	if d.More() {
		return errors.New("there is more after the value")
	}
	return nil
}

// check refuses a plan that makes no sense, with the field that is wrong.
func (l searchLine) check() error {
	named, err := schedule.Named(l.Schedule)
	virtual := max(l.Virtual, 1)
	for _, rule := range []struct {
		ok    bool
		field string
		value any
		want  string
	}{
		{err == nil, "schedule", l.Schedule, arg.OneOf(l.Schedule, scheduleNames())},
		{l.Model != "", "model", "missing", "want a plan of penstock plan --model; the layers of a " +
			"chain are " +
			"not those of a model"},
		{l.Batch > 0, "batch", l.Batch, "want a whole number from 1"},
		{l.Chunks > 0 && l.Batch%max(l.Chunks, 1) == 0, "chunks", l.Chunks,
			fmt.Sprintf("want a divisor of the batch of %d", l.Batch)},
		{l.Rows == 0 || l.Rows*l.Chunks == l.Batch, "rows", l.Rows, "want batch / chunks, or it left out"},
		{l.Limit >= 0, "memory_limit", l.Limit, "want a whole number of bytes"},
		{l.Replicas <= 1, "replicas", l.Replicas, "want a plan of one pipeline"},
		{len(l.Balance) > 0 && len(l.Balance)%virtual == 0, "balance", l.Balance,
			fmt.Sprintf("want layers of %d stages on each device", virtual)},
		{named.Virtual == 0 || named.Virtual == virtual, "virtual", l.Virtual, fmt.Sprintf("want %d for %s",
			named.Virtual, l.Schedule)},
		{l.named() == nil || len(l.Devices)*virtual == len(l.Balance) &&
			distinct(l.named()) == len(l.Devices),
			"devices", l.Devices,
			"want each device once, as many as the balance has"},
		{l.Bytes == nil || len(l.Bytes) > 0 && len(l.Bytes) == len(l.named()) && slices.Min(l.Bytes) > 0,
			"bytes", l.Bytes,
			"want a number from 1 for each of devices"},
		{l.Input == nil || len(l.Input.Shape) > 0 && slices.Min(l.Input.Shape) > 0 && l.Input.Outputs > 0,
			"input", l.Input,
			"want the sizes of a row and of its outputs, each from 1"},
	} {
		if !rule.ok {
			return fmt.Errorf("%s is %v; %s", rule.field, rule.value, rule.want)
		}
	}
	return nil
}
