package report

import (
	"encoding/json"
	"fmt"
	"io"

	"penstock.example/internal/disk"
	"penstock.example/plan"
	"penstock.example/remat"
	"penstock.example/schedule"
)

// FileName is the name of a run's file in its directory.
const FileName = "run.json"

// Run describes a run for its page; package metrics has its numbers. Only Title is required.
type Run struct {
	Title string `json:"title"` // "resnet20 on fashion-mnist"
	Facts []Fact `json:"facts,omitempty"`
	Last  int64  `json:"last,omitempty"` // the number of the run's last step; 0 is unknown
	From  int64  `json:"from,omitempty"` // the step of the checkpoint that was resumed; 0 is none

	Plan *plan.Plan `json:"-"` // of a whole step
	// Planned is the predicted step, with the bytes of devices. If it is nil, the page has Plan's
	// times alone.
	Planned *schedule.Timeline `json:"-"`
	Limits  []int64            `json:"limits,omitempty"` // bytes, by device of Plan; 0 is no limit
	Others  []Other            `json:"others,omitempty"` // the schedules of the search
	Layers  []Layer            `json:"layers,omitempty"` // of the model, in order
	Chains  []Chain            `json:"costs,omitempty"`

	Step int64              `json:"step,omitempty"` // the step that Ran recorded
	Rows int                `json:"rows,omitempty"` // samples of its batch; 0 is unknown
	Ran  *schedule.Timeline `json:"-"`              // its workers are the devices of Plan

	Ended *Ended `json:"ended,omitempty"` // nil if the run goes on, or was killed
}

// Ended is how a run ended.
type Ended struct {
	How  string  `json:"how"`           // "finished", "interrupted" or "failed"
	Why  string  `json:"why,omitempty"` // in words; "" if it finished
	Time float64 `json:"time"`          // in seconds since 1970 UTC (metrics.Seconds)
}

// Other is a schedule of the search for a plan, the chosen one included.
type Other struct {
	Schedule     string  `json:"schedule"`
	MicroBatches int     `json:"micro_batches,omitempty"`
	Step         float64 `json:"step,omitempty"`  // seconds; 0 if it has no plan
	Bound        float64 `json:"bound,omitempty"` // seconds; a lower bound for the schedule
	Peak         int64   `json:"peak,omitempty"`  // bytes, the greatest of all devices
	Lost         string  `json:"lost,omitempty"`  // why it was rejected; "" for the plan
}

// Fact is a property of the run, such as {"libtorch", "1.13.1"}.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Layer is a layer of the model. Times and Saved are for one micro-batch; 0 is not measured.
type Layer struct {
	Name       string  `json:"name"`
	Type       string  `json:"type"`
	Parameters int64   `json:"parameters"` // bytes
	Forward    float64 `json:"forward"`    // seconds
	Backward   float64 `json:"backward"`   // seconds
	Saved      int64   `json:"saved"`      // bytes held from forward to backward
	// Of is how many layers, from this one on, were measured together. Times and Saved are for all of
	// them. 0 is 1.
	Of int `json:"of,omitempty"`
}

// Chain is the costs of the units of a stage for one micro-batch after the first.
type Chain struct {
	Stage int `json:"stage"`
	remat.Chain
}

// runFile is a Run in a file.
type runFile struct {
	Version int `json:"version"`
	*plainRun
	Plan    string    `json:"plan,omitempty"` // as plan.Parse reads it
	Planned *timeline `json:"planned,omitempty"`
	Ran     *timeline `json:"ran,omitempty"`
}

// plainRun is a Run without its methods.
type plainRun Run

const (
	version     = 1
	mostWorkers = 1 << 16 // the page draws all workers of a timeline
)

// WriteFile writes a run to a file, whole or not at all.
func (r Run) WriteFile(path string) error {
	return disk.Write(path, func(w io.Writer) error { return json.NewEncoder(w).Encode(r) })
}

func (r Run) MarshalJSON() ([]byte, error) {
	f := runFile{Version: version, plainRun: (*plainRun)(&r), Planned: (*timeline)(r.Planned),
		Ran: (*timeline)(r.Ran)}
	if r.Plan != nil {
		f.Plan = r.Plan.String()
	}
	return json.Marshal(f)
}

// ReadFile reads a file that [Run.WriteFile] wrote. It is safe on files from anywhere.
func ReadFile(path string) (Run, error) {
	text, err := disk.Read(path, disk.MaxJSON)
	if err != nil {
		return Run{}, fmt.Errorf("report: %w", err)
	}
	var r Run
	if err = json.Unmarshal(text, &r); err != nil {
		err = fmt.Errorf("report: %s: %w", path, err)
	}
	return r, err
}

func (r *Run) UnmarshalJSON(text []byte) error {
	f := runFile{plainRun: &plainRun{}}
	if err := json.Unmarshal(text, &f); err != nil {
		return err
	}
	if f.Version != version {
		return fmt.Errorf("version %d; this Penstock reads version %d", f.Version, version)
	}
	*r = Run(*f.plainRun)
	r.Planned, r.Ran = (*schedule.Timeline)(f.Planned), (*schedule.Timeline)(f.Ran)
	if f.Plan != "" {
		var err error
		if r.Plan, err = plan.Parse(f.Plan); err != nil {
			return err
		}
	}
	for _, c := range r.Chains {
		if err := c.Check(); err != nil {
			return err
		}
	}
	for _, t := range []*schedule.Timeline{r.Planned, r.Ran} {
		if t == nil {
			continue
		}
		if err := t.Validate(); err != nil {
			return err
		}
		if r.Plan != nil && t.Workers != len(r.Plan.Devices) || t.Workers > mostWorkers {
			return fmt.Errorf("a timeline of %d workers; want one for each device of the plan, at most %d",
				t.Workers, mostWorkers)
		}
	}
	return nil
}

// timeline has a short form in JSON: an event is [worker, action, start, end, live], with times in
// nanoseconds.
type timeline schedule.Timeline

func (t timeline) MarshalJSON() ([]byte, error) {
	events := [][]any{}
	for _, e := range t.Events {
		events = append(events, []any{e.Worker, e.Action.String(), e.Start.Nanoseconds(), e.End.Nanoseconds(),
			e.Live})
	}
	return json.Marshal(map[string]any{"workers": t.Workers, "events": events})
}

func (t *timeline) UnmarshalJSON(text []byte) error {
	var f struct {
		Workers int               `json:"workers"`
		Events  []json.RawMessage `json:"events"`
	}
	if err := json.Unmarshal(text, &f); err != nil {
		return err
	}
	t.Workers, t.Events = f.Workers, nil
	for i, fields := range f.Events {
		var e schedule.Event
		var action string
		err := json.Unmarshal(fields, &[]any{&e.Worker, &action, &e.Start, &e.End, &e.Live})
		if err == nil {
			e.Action, err = schedule.ParseAction(action)
		}
		if err != nil {
			return fmt.Errorf("event %d: %w", i, err)
		}
		t.Events = append(t.Events, e)
	}
	return nil
}
