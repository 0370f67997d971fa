package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"

	"penstock.example/torch"
	"penstock.example/train"
)

// textReporter shows progress on stderr, as a bar on a terminal and as a line now and then
// elsewhere, and the outcome on stdout.
type textReporter struct {
	stdout, stderr io.Writer
	title          string // "resnet20 on fashion-mnist"
	devices        []torch.Device
	names          []string // of devices
	taken, last    int64    // the number of steps before the run, and of its last step

	waiting func()                   // ends telling that the first step runs; nil where it is not told
	bar     *progressbar.ProgressBar // nil without a terminal
	width   func() int               // of the terminal, which may change
	ended   bool                     // there are no more steps
	left    bool                     // what follows is below the bar
	apart   counters                 // of evaluations apart from the bar
	shown   time.Time                // when progress was shown last
	samples int
	peaks   highest
	durations
}

// How often progress is shown: a bar as often as an eye can follow, a line often enough to see a
// run live and rarely enough for a log.
const (
	barEvery  = 100 * time.Millisecond
	lineEvery = 2 * time.Second
	tickEvery = time.Second // on a terminal, where nothing but time goes on
)

func newTextReporter(stdout, stderr io.Writer, j *job) *textReporter {
	r := &textReporter{stdout: stdout, stderr: stderr, apart: counters{w: stderr, of: "samples"}, title: j.modelName + " on " + j.dataName,
		devices: j.pipe.Devices(), names: j.pipe.Config().DeviceNames(), taken: j.loop.Step, last: j.last}
	if width, ok := terminalWidth(stderr); ok {
		r.bar = newBar(stderr, width, j.loop.Step, j.last)
		r.width = func() int { width, _ := terminalWidth(stderr); return width }
	}
	return r
}

// narrow is the width below which a bar is short and shows no times.
const narrow = 72

// newBar makes a bar for the steps that are left, so that its estimate of the time is of this run.
// Memory has a row of its own below: together they would be wider than many a terminal.
func newBar(w io.Writer, width int, done, last int64) *progressbar.ProgressBar {
	cells := 20
	if width < narrow {
		cells = 5
	}
	return progressbar.NewOptions64(last-done, progressbar.OptionSetWriter(w),
		progressbar.OptionSetWidth(cells), progressbar.OptionSetPredictTime(width >= narrow),
		progressbar.OptionSetElapsedTime(width >= narrow), progressbar.OptionThrottle(barEvery),
		progressbar.OptionShowDescriptionAtLineEnd(),
		progressbar.OptionSetMaxDetailRow(1))
}

// aroundBar is how many characters the bar takes that newBar makes for a width: " 100% |", its
// cells, "| " and, with times, " [59m59s:59m59s]".
func aroundBar(width int) int {
	if width < narrow {
		return len(" 100% |") + 5 + len("|   ")
	}
	return len(" 100% |") + 20 + len("|   [59s:59s] ") // the bar itself shrinks for longer times
}

// begin shows a bar from the beginning: a first step may take long, as it also measures and plans.
func (r *textReporter) begin() {
	if r.bar == nil || r.taken >= r.last {
		return
	}
	began := time.Now()
	tell := func(now time.Time) {
		count, width := fmt.Sprintf("step %d of %d", r.taken+1, r.last), r.width()
		r.bar.Describe(fitting(width-aroundBar(width), fmt.Sprintf("%s for %.0f s", count, now.Sub(began).Seconds()), count))
	}
	tell(began)
	r.waiting = repeat(tickEvery, tell)
}

// begun says that something else is shown from now on.
func (r *textReporter) begun() {
	if r.waiting != nil {
		r.waiting()
	}
}

func (r *textReporter) step(s train.StepInfo) error {
	r.begun()
	r.add(s.Duration)
	r.samples += s.Samples
	r.peaks.add(s)
	every := lineEvery
	if r.bar != nil {
		every = barEvery
	}
	if now := time.Now(); s.Step == r.last || now.Sub(r.shown) >= every {
		r.shown = now
		if err := r.show(s); err != nil {
			return err
		}
	}
	if r.bar != nil {
		return r.bar.Add(1)
	}
	return nil
}

// show shows a step. A row that is wider than the terminal would go on in the next line, where the
// bar does not clear it: rows say less until they fit.
func (r *textReporter) show(s train.StepInfo) error {
	count, loss, speed := fmt.Sprintf("%d/%d", s.Step, r.last), fmt.Sprintf("  loss %.4f",
		s.Loss), fmt.Sprintf("  %.0f samples/s", s.SamplesPerSecond)
	if r.bar == nil {
		_, err := fmt.Fprintf(r.stderr, "step %s%s%s  %s\n", count, loss, speed, r.memory(s.Peak))
		return err
	}
	width := r.width()
	r.bar.Describe(fitting(width-aroundBar(width), count+loss+speed, count+loss))
	return r.bar.AddDetail(fitting(width-1, r.memory(s.Peak), r.memoryInBrief(s.Peak)))
}

func (r *textReporter) evaluating(what string, done, all int) {
	r.begun()
	if r.running() {
		width := r.width()
		r.bar.Describe(fitting(width-aroundBar(width), fmt.Sprintf("%s %d/%d", what, done, all), what))
		return
	}
	r.leaveBar()
	r.apart.at(what, done, all)
}

func (r *textReporter) validated(v train.ValidationInfo) error {
	if r.running() {
		if err := r.bar.Clear(); err != nil {
			return err
		}
	} else {
		r.leaveBar()
	}
	_, err := fmt.Fprintln(r.stderr, validationText(v))
	return err
}

// running says that there is a bar with steps to come.
func (r *textReporter) running() bool { return r.bar != nil && !r.ended && !r.bar.IsFinished() }

// leaveBar goes on below a bar that is finished.
func (r *textReporter) leaveBar() {
	if r.bar != nil && r.bar.IsFinished() && !r.left {
		r.left = true
		fmt.Fprint(r.stderr, "\n")
	}
}

// fitting is the first text of at most so many characters, or else as much of the last as fits. The
// texts are ASCII.
func fitting(characters int, texts ...string) string {
	for _, text := range texts {
		if len(text) <= characters {
			return text
		}
	}
	if characters < 1 {
		return ""
	}
	return texts[len(texts)-1][:characters-1] + "…"
}

// plainNumber is a number of so many digits, without an exponent.
func plainNumber(x float64, digits int) string {
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(x, 'g', digits, 64), 64) // which it has written itself
	return strconv.FormatFloat(rounded, 'f', -1, 64)
}

// memory shows the bytes of each device, against its limit if it has one.
func (r *textReporter) memory(bytes []int64) string {
	return r.memoryRow(bytes, formatBytes, " of ", "  ")
}

// memoryInBrief is memory in fewer characters: cpu:0 8.7M/512M.
func (r *textReporter) memoryInBrief(bytes []int64) string {
	return r.memoryRow(bytes, briefBytes, "/", " ")
}

func (r *textReporter) memoryRow(bytes []int64, format func(int64) string, of, between string) string {
	var parts []string
	for i, d := range r.devices {
		part := fmt.Sprintf("%s %s", r.names[i], format(bytes[i]))
		if limit := d.Memory().Limit; limit > 0 {
			part += of + format(limit)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, between)
}

// endSteps goes on below the bar and its row of memory, on whichever of the two the cursor stands.
func (r *textReporter) endSteps() {
	r.begun()
	r.ended = true
	switch {
	case r.bar == nil || !r.bar.IsStarted():
	case r.bar.IsFinished():
		r.leaveBar()
	default:
		fmt.Fprint(r.stderr, "\n\n")
	}
}

func (r *textReporter) done(o outcome) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d steps done\n", r.title, o.steps)
	if o.test.mse != nil {
		fmt.Fprintf(&b, "test error     %.4g (mean squared)\n", *o.test.mse)
	} else {
		fmt.Fprintf(&b, "test accuracy  %.2f %%\n", 100**o.test.accuracy)
	}
	if ms, ok := r.median(); ok {
		var total time.Duration
		for _, d := range r.durations {
			total += d
		}
		fmt.Fprintf(&b, "speed          %.0f samples/s, %s ms a step (median)\n", float64(r.samples)/total.Seconds(), plainNumber(ms, 4))
		fmt.Fprintf(&b, "peak memory    %s\n", r.memory(r.peaks))
	}
	if o.safeLimit != nil {
		fmt.Fprintf(&b, "safe limit     --memory-limit %d is enough, whichever stage runs ahead\n", slices.Max(o.safeLimit))
	}
	for i, m := range o.reserved {
		if m.Taken > 0 {
			fmt.Fprintf(&b, "reserved       %s %s, of which %s are lost to fragmentation\n", r.names[i], formatBytes(m.Taken), formatBytes(m.Fragmentation()))
		}
	}
	if o.memory.Peak > 0 {
		fmt.Fprintf(&b, "process        %s resident, at most %s\n", formatBytes(o.memory.Resident), formatBytes(o.memory.Peak))
	}
	fmt.Fprintf(&b, "params sha256  %s\n", o.sha256)
	if o.checkpoint != "" {
		fmt.Fprintf(&b, "checkpoint     %s\n", o.checkpoint)
	}
	if o.trace != "" {
		fmt.Fprintf(&b, "trace          %s\n", o.trace)
	}
	_, err := io.WriteString(r.stdout, b.String())
	return err
}
