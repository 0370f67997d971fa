package command

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"penstock.example/internal/progress"
	"penstock.example/torch"
	"penstock.example/train"
)

// stepLine, validationLine and doneLine are the lines of --format json.
type stepLine struct {
	Step             int64   `json:"step"`
	Loss             float64 `json:"loss"`
	SamplesPerSecond float64 `json:"samples_per_s"`
	PeakBytes        []int64 `json:"peak_bytes"`
}

type doneLine struct {
	Done           bool     `json:"done"`
	Steps          int64    `json:"steps"`
	TestAccuracy   *float64 `json:"test_accuracy,omitempty"`
	TestMSE        *float64 `json:"test_mse,omitempty"` // for regression, in place of TestAccuracy
	ParamsSHA256   string   `json:"params_sha256"`
	StepMedian     *float64 `json:"step_ms_median"`   // null if no step was left to take
	SafeLimitBytes []int64  `json:"safe_limit_bytes"` // see safeLimit; null if no step was left to take
	// Of the whole process, as the system counts. 0 is unknown.
	ResidentBytes     int64 `json:"resident_bytes"`
	PeakResidentBytes int64 `json:"peak_resident_bytes"`

	checkpoint, trace string // "" without --out and without --trace
}

type validationLine struct {
	Epoch    int      `json:"epoch"` // counted from 0
	Step     int64    `json:"step"`
	Loss     float64  `json:"validation_loss"`
	Accuracy *float64 `json:"validation_accuracy,omitempty"`
	MSE      *float64 `json:"validation_mse,omitempty"`
	Better   bool     `json:"best"`              // so far
	Partial  bool     `json:"partial,omitempty"` // the run has ended within the epoch
}

// reporter shows the progress of a run on stderr, and the outcome or JSON on stdout.
type reporter struct {
	stdout, stderr io.Writer
	lines          *json.Encoder // nil is text
	title          string        // "resnet20 on fashion-mnist"
	devices        []torch.Device
	names          []string // of devices
	last           int64    // the number of the run's last step

	task           *progress.Task                   // nil without a terminal
	state          string                           // of task
	showEvaluation func(what string, done, all int) // without task
	shown          time.Time                        // when progress was shown last
	peaks          peakBytes
	took, speed    []float64 // of steps: milliseconds, samples a second
}

func newReporter(stdout, stderr io.Writer, j *job) *reporter {
	r := &reporter{stdout: stdout, stderr: stderr, title: j.modelName + " on " + j.dataName,
		devices: j.pipe.Devices(), names: j.pipe.Config().DeviceNames(), last: j.last}
	_, live := progress.Width(stderr)
	if j.format == "json" {
		r.lines = json.NewEncoder(stdout)
	} else if live && j.loop.Step < r.last {
		r.task, r.state = progress.New(stderr, "training", ""), "no step was done"
		r.stderr = r.task
	}
	if r.showEvaluation = func(string, int, int) {}; live || r.lines == nil {
		r.showEvaluation = progress.Successive(stderr, "samples")
	}
	return r
}

func (r *reporter) step(s train.StepInfo) error {
	r.took = append(r.took, 1000*s.Duration.Seconds())
	r.speed = append(r.speed, s.SamplesPerSecond)
	r.peaks.add(s)
	if r.lines != nil {
		return r.lines.Encode(stepLine{s.Step, s.Loss, s.SamplesPerSecond, s.Peak})
	}
	text := fmt.Sprintf("step %d/%d  loss %.4f  %.0f samples/s  %s", s.Step, r.last, s.Loss,
		s.SamplesPerSecond, r.memory(s.Peak))
	if r.task != nil {
		r.state = text
		r.task.Note(text)
		r.task.At(len(r.took), len(r.took)+int(r.last-s.Step))
	} else if s.Step == r.last || time.Since(r.shown) >= progress.LineEvery {
		r.shown = time.Now()
		_, err := fmt.Fprintln(r.stderr, text)
		return err
	}
	return nil
}

func (r *reporter) evaluating(what string, done, all int) {
	if r.task != nil {
		r.task.Note(fmt.Sprintf("%s %d/%d", what, done, all))
	} else {
		r.showEvaluation(what, done, all)
	}
}

func (r *reporter) validated(v train.ValidationInfo) error {
	if r.lines != nil {
		return r.lines.Encode(validationLine{v.Epoch, v.Step, *v.Loss, v.Accuracy, v.MSE, v.Better,
			v.Partial})
	}
	text := fmt.Sprintf("epoch %d", v.Epoch+1)
	if v.Partial {
		text += fmt.Sprintf(", ended after step %d", v.Step)
	}
	text += fmt.Sprintf(": validation loss %.4f", *v.Loss)
	if v.MSE != nil {
		text += fmt.Sprintf(", mean squared error %.4g", *v.MSE)
	} else {
		text += fmt.Sprintf(", accuracy %.2f %%", 100**v.Accuracy)
	}
	if v.Better {
		text += ", the best so far"
	}
	_, err := fmt.Fprintln(r.stderr, text)
	return err
}

// endSteps leaves the last step on the terminal.
func (r *reporter) endSteps() {
	if r.task != nil {
		r.task.Line(r.state)
		r.task.End()
		r.task = nil
	}
}

func (r *reporter) memory(bytes []int64) string {
	var parts []string
	for i, d := range r.devices {
		part := fmt.Sprintf("%s %s", r.names[i], formatBytes(bytes[i]))
		if limit := d.Memory().Limit; limit > 0 {
			part += " of " + formatBytes(limit)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, "  ")
}

// median sorts the numbers.
func median(x []float64) float64 {
	slices.Sort(x)
	return (x[(len(x)-1)/2] + x[len(x)/2]) / 2
}

func (r *reporter) done(o doneLine) error {
	if len(r.took) > 0 {
		o.StepMedian = new(median(r.took))
	}
	if r.lines != nil {
		return r.lines.Encode(o)
	}
	return printTable(r.stdout, func(w io.Writer) {
		fmt.Fprintf(w, "%s: %s done\n", r.title, counted(int(o.Steps), "step"))
		if o.TestMSE != nil {
			fmt.Fprintf(w, "test error\t%.4g (mean squared)\n", *o.TestMSE)
		} else {
			fmt.Fprintf(w, "test accuracy\t%.2f %%\n", 100**o.TestAccuracy)
		}
		if o.StepMedian != nil {
			fmt.Fprintf(w, "speed\t%.0f samples/s, %.3f ms a step (medians)\npeak memory\t%s\n",
				median(r.speed), *o.StepMedian, r.memory(r.peaks))
		}
		if o.SafeLimitBytes != nil {
			n := slices.Max(o.SafeLimitBytes)
			fmt.Fprintf(w, "safe limit\t--memory-limit %d (%s) is enough, whichever stage runs ahead\n", n,
				formatBytes(n))
		}
		if o.PeakResidentBytes > 0 {
			fmt.Fprintf(w, "process\t%s resident, at most %s\n", formatBytes(o.ResidentBytes),
				formatBytes(o.PeakResidentBytes))
		}
		row(w, "params sha256", o.ParamsSHA256)
		for _, file := range [][2]string{{"checkpoint", o.checkpoint}, {"trace", o.trace}} {
			if file[1] != "" {
				row(w, file[0], file[1])
			}
		}
	})
}
