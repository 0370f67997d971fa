package main

import (
	"encoding/json"
	"io"
	"slices"
	"time"

	"penstock.example/torch"
	"penstock.example/train"
)

// reporter reports progress and outcome of a run.
type reporter interface {
	// begin is called once before the first step.
	begin()
	// step is told of every step.
	step(train.StepInfo) error
	// evaluating is told how many samples of an evaluation are done.
	evaluating(what string, done, all int)
	// validated is told of every validation.
	validated(train.ValidationInfo) error
	// endSteps is called once after the last, however the run ended.
	endSteps()
	// done is told of a run that is complete.
	done(outcome) error
}

// outcome is the result of a complete run.
type outcome struct {
	steps      int64
	test       score
	safeLimit  []int64 // bytes, by device; nil if none is known, as when no step was left to take
	memory     torch.ProcessMemory
	reserved   []torch.Memory // by device, of GPUs; nil if there is none
	sha256     string
	checkpoint string // "" without --out
	trace      string // "" without --trace
}

// jsonReporter is the reporter of --format json: an object for each step and one for the outcome,
// each on a line of its own. Their fields stay.
type jsonReporter struct {
	out         *json.Encoder
	evaluations counters // without a writer nothing is shown
	durations
}

// newJSONReporter reports on stdout, and on a terminal how far an evaluation is, which has no lines.
func newJSONReporter(stdout, stderr io.Writer) *jsonReporter {
	r := &jsonReporter{out: json.NewEncoder(stdout)}
	if _, live := terminalWidth(stderr); live {
		r.evaluations = counters{w: stderr, of: "samples"}
	}
	return r
}

type stepLine struct {
	Step             int64   `json:"step"`
	Loss             float64 `json:"loss"`
	SamplesPerSecond float64 `json:"samples_per_s"`
	PeakBytes        []int64 `json:"peak_bytes"`
}

type doneLine struct {
	Done         bool     `json:"done"`
	Steps        int64    `json:"steps"`
	TestAccuracy float64  `json:"test_accuracy"`
	ParamsSHA256 string   `json:"params_sha256"`
	StepMedian   *float64 `json:"step_ms_median"` // null if a resumed run had no step left to take
	// SafeLimitBytes is, by device, the lowest --memory-limit under which the run cannot fail,
	// however far stages run ahead. Null if a resumed run had no step left to take.
	SafeLimitBytes []int64 `json:"safe_limit_bytes"`
	// Of the whole process, as the system counts: now, and at most. 0 is unknown.
	ResidentBytes     int64 `json:"resident_bytes"`
	PeakResidentBytes int64 `json:"peak_resident_bytes"`
	// Of GPUs, by device: what libtorch's allocator has reserved, and what of it is lost between blocks.
	ReservedBytes      []int64 `json:"reserved_bytes,omitempty"`
	FragmentationBytes []int64 `json:"fragmentation_bytes,omitempty"`
}

// regressionLine is a doneLine of regression: the mean squared error is in place of the accuracy.
type regressionLine struct {
	doneLine
	TestAccuracy *float64 `json:"test_accuracy,omitempty"`
	TestMSE      float64  `json:"test_mse"`
}

func (r *jsonReporter) begin() {}

func (r *jsonReporter) step(s train.StepInfo) error {
	r.add(s.Duration)
	return r.out.Encode(stepLine{s.Step, s.Loss, s.SamplesPerSecond, s.Peak})
}

func (r *jsonReporter) evaluating(what string, done, all int) {
	if r.evaluations.w != nil {
		r.evaluations.at(what, done, all)
	}
}

// validationLine is a line after the last step of an epoch or of the run, with --validate.
type validationLine struct {
	Epoch    int      `json:"epoch"` // counted from 0
	Step     int64    `json:"step"`
	Loss     float64  `json:"validation_loss"`
	Accuracy *float64 `json:"validation_accuracy,omitempty"`
	MSE      *float64 `json:"validation_mse,omitempty"`
	Better   bool     `json:"best"`              // so far
	Partial  bool     `json:"partial,omitempty"` // the run has ended within the epoch
}

func (r *jsonReporter) validated(v train.ValidationInfo) error {
	return r.out.Encode(validationLine{v.Epoch, v.Step, *v.Loss, v.Accuracy, v.MSE, v.Better, v.Partial})
}

func (r *jsonReporter) endSteps() {}

func (r *jsonReporter) done(o outcome) error {
	line := doneLine{
		Done: true, Steps: o.steps, ParamsSHA256: o.sha256, SafeLimitBytes: o.safeLimit,
		ResidentBytes: o.memory.Resident, PeakResidentBytes: o.memory.Peak,
	}
	for _, m := range o.reserved {
		line.ReservedBytes, line.FragmentationBytes = append(line.ReservedBytes, m.Taken), append(line.FragmentationBytes, m.Fragmentation())
	}
	if m, ok := r.median(); ok {
		line.StepMedian = &m
	}
	if o.test.mse != nil {
		return r.out.Encode(regressionLine{doneLine: line, TestMSE: *o.test.mse})
	}
	line.TestAccuracy = *o.test.accuracy
	return r.out.Encode(line)
}

// durations collects how long steps took.
type durations []time.Duration

func (d *durations) add(t time.Duration) { *d = append(*d, t) }

// median is in milliseconds, and false if there are none.
func (d durations) median() (ms float64, ok bool) {
	if len(d) == 0 {
		return 0, false
	}
	sorted := slices.Sorted(slices.Values(d))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]).Seconds() / 2 * 1000, true
}
