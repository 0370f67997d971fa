package command

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"penstock.example/internal/option"
	"penstock.example/internal/report"
	"penstock.example/pipe"
	"penstock.example/plan"
	"penstock.example/torch"
)

// planJSON is the JSON of a plan. penstock train --plan reads it.
type planJSON struct {
	Balance    []int    `json:"balance"` // layers of each stage
	Schedule   string   `json:"schedule"`
	Chunks     int      `json:"chunks"` // of each replica
	Step       float64  `json:"step_us"`
	LowerBound float64  `json:"lower_bound_us"` // of the step of all plans that were searched
	Peak       []int64  `json:"peak_bytes"`     // by device
	Proved     bool     `json:"proved"`         // no plan that was searched is faster
	Virtual    int      `json:"virtual"`        // stages of each device
	Replicas   int      `json:"replicas"`
	Threads    int      `json:"threads"` // of each device
	Devices    []string `json:"devices"`
	// Train has the flags of penstock train by name, for a model. "" is a flag left out.
	Train     map[string]string `json:"train,omitempty"`
	Bytes     []int64           `json:"bytes,omitempty"` // free memory of Devices, without --memory-limit
	Explained *plan.Explanation `json:"explained,omitempty"`
	Page      *report.Run       `json:"page,omitempty"` // in a file, for penstock report
}

func (p *foundPlan) line() planJSON {
	b, f := p.Best, p.flags
	line := planJSON{Balance: b.Balance, Schedule: b.Schedule, Chunks: b.MicroBatches, Step: us(b.Step),
		LowerBound: us(p.LowerBound), Peak: b.Peaks, Proved: p.Proved, Virtual: b.Virtual,
		Replicas: b.Replicas, Threads: b.Threads, Devices: b.Devices}
	if p.Units == nil { // a chain
		return line
	}
	line.Balance = p.Layers(b.Balance)
	line.Train = map[string]string{
		"model": f.modelName, "set": strings.Join(f.settings, ","), "lora": f.lora.String(),
		"batch":     fmt.Sprint(f.batch),
		"optimizer": f.optimizer, "momentum": fmt.Sprint(f.update.Momentum),
		"train-only": strings.Join(f.trainOnly, ","), "autocast": f.autocast.String(),
		"balance": option.Joined(line.Balance), "stages": fmt.Sprint(len(b.Devices)), "schedule": b.Schedule,
		"virtual": fmt.Sprint(b.Virtual), "chunks": fmt.Sprint(b.MicroBatches),
		"threads": fmt.Sprint(b.Threads), "checkpoint": string(pipe.Optimal), "memory-limit": "",
	}
	if f.limit > 0 {
		line.Train["memory-limit"] = fmt.Sprint(f.limit)
	}
	if f.dataName != "" {
		line.Train["data"], line.Train["data-dir"] = f.dataName, f.dataDir
		line.Train["data-set"] = strings.Join(f.dataSettings, ",")
	}
	if slices.Contains(windowed, f.dataName) {
		line.Train["window"] = fmt.Sprint(f.window)
	}
	if f.onGPUs() {
		line.Train["deterministic"], line.Train["tf32"] = fmt.Sprint(f.numerics.deterministic),
			fmt.Sprint(f.numerics.tf32)
	}
	if f.devices != nil {
		line.Train["devices"] = strings.Join(b.Devices, ",")
		if slices.ContainsFunc(b.Limits, func(n int64) bool { return n != f.limit }) {
			line.Bytes, line.Train["memory-limit"] = b.Limits, ""
		}
	}
	return line
}

// show prints the best plan, the other schedules, and an explanation of line.
func (p *foundPlan) show(w io.Writer, line planJSON) {
	b, c, e := p.Best, p.Profile.Measured[0].Chain, line.Explained
	fmt.Fprintf(w, "step\t%s; %s\nplan\t%s\n", micros(us(b.Step)), p.bound(), line.inFlags())
	if b.Rows > 0 {
		fmt.Fprintf(w, "batch\t%s of %d rows, on %s\n", counted(b.MicroBatches, "micro-batch"), b.Rows,
			counted(b.Replicas, "pipeline"))
	}
	limit := func(device int, none string) string {
		if b.Limits[device] == 0 {
			return none
		}
		return formatBytes(b.Limits[device])
	}
	row(w, "\nSTAGE", "DEVICE", "LAYERS", "RECOMPUTED", "BUSY", "PEAK", "LIMIT")
	first := 0
	for s, n := range b.Balance {
		device, layers := b.Planned.Stages[s].Device, c.Layers[first].Name
		if n > 1 {
			layers += " to " + c.Layers[first+n-1].Name
		}
		row(w, s, b.Devices[device], fmt.Sprintf("%d: %s", line.Balance[s], layers),
			b.Planned.Stages[s].Recomputed(),
			fmt.Sprintf("%.1f %%", percentOf(float64(b.Busy[device]), float64(b.Step))),
			formatBytes(b.Peaks[device]), limit(device, "none"))
		first += n
	}
	row(w, "\nSCHEDULE", "CHUNKS", "STEP", "NONE BELOW", "HIGHEST PEAK", "WHY NOT")
	for _, o := range line.Page.Others {
		if o.Step == 0 {
			row(w, o.Schedule, "", "", "", "", o.Lost)
		} else {
			row(w, o.Schedule, o.MicroBatches, micros(1e6*o.Step), micros(1e6*o.Bound), formatBytes(o.Peak),
				cmp.Or(o.Lost, "the best"))
		}
	}
	if e == nil {
		return
	}
	shares := func(list []plan.Share) string {
		var words []string
		for _, s := range list {
			words = append(words, fmt.Sprintf("%.0f %% %s", 100*s.Part, s.Name))
		}
		return strings.Join(words, ", ")
	}
	fmt.Fprintf(w, "\ntime\t%s is busy for %.1f %% of the step; of that %s\n", b.Devices[e.Slowest],
		100*e.Busy, shares(e.Slow))
	fmt.Fprintf(w, "memory\t%s holds %s of %s; of what its layers hold %s\n", b.Devices[e.Fullest],
		formatBytes(b.Peaks[e.Fullest]), limit(e.Fullest, "any number"), shares(e.Full))
	for _, g := range e.Gains {
		fmt.Fprintf(w, "%s\t%s, %s\n", g.What, micros(us(g.Step)),
			percent(float64(g.Step-p.Searched.Step), float64(p.Searched.Step)))
	}
}

// bound says how much faster another plan could be.
func (p *foundPlan) bound() string {
	if p.Proved {
		return "no plan of those searched takes less"
	}
	return fmt.Sprintf("no plan of those searched takes less than %s (%s)", micros(us(p.LowerBound)),
		percent(float64(p.LowerBound-p.Best.Step), float64(p.Best.Step)))
}

// takePlan sets flags from the file of --plan. With --plan auto applyAutoPlan sets them later.
func (f *trainFlags) takePlan(cmd *cobra.Command) error {
	if f.planned == "" || f.planned == auto {
		return nil
	}
	line, err := readParsed(cmd, f.planned, parsePlan)
	if err != nil {
		return badUsage("--plan %w; penstock plan --model --out writes plans", err)
	}
	return f.take(cmd.Flags(), line)
}

// take sets flags from a plan. A flag that is given must have the plan's value, except flags of data
// and flags that --plan auto keeps.
func (f *trainFlags) take(s *pflag.FlagSet, line planJSON) error {
	refuse := func(name, value string, why error) error {
		return badUsage("--plan %s: %s is %s: %w", f.planned, name, value, why)
	}
	for _, name := range slices.Sorted(maps.Keys(line.Train)) {
		flag, has := s.Lookup(name), line.Train[name]
		if flag == nil {
			return refuse(name, has, errors.New("there is no such flag"))
		}
		given, self := strings.Trim(flag.Value.String(), "[]"), f.planned == auto
		switch {
		case !flag.Changed && has == "", flag.Changed && (given == has || name == "data" ||
			slices.Contains(dataOnly, name) || self && slices.Contains(keptByAuto, name)):
			continue
		case flag.Changed && !(self && name == "devices"): // a plan may reorder devices
			return badUsage("--%s %s: the plan of --plan %s has %s; want --%[1]s left out, or another plan",
				name, given, f.planned, cmp.Or(has, "none"))
		}
		values := []string{has}
		if flag.Value.Type() == option.Repeated {
			values = strings.Split(has, ",")
		}
		for _, v := range values {
			if err := s.Set(name, v); err != nil {
				return refuse(name, v, errors.Unwrap(err))
			}
		}
	}
	f.bytes = nil
	if line.Bytes != nil {
		f.bytes = map[torch.Device]int64{}
	}
	for i := range min(len(line.Bytes), len(f.config.Devices)) {
		f.bytes[f.config.Devices[i]] = line.Bytes[i]
	}
	return nil
}

// parsePlan parses the plan of a model.
func parsePlan(text []byte) (line planJSON, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err = d.Decode(&line); err == nil && line.Train == nil {
		err = errors.New("it is of a chain, whose layers are not those of a model")
	}
	return line, err
}
