package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// table prints aligned columns, a block for each subject.
type table struct {
	*tabwriter.Writer
	begun bool
}

// block starts a subject: columns of one have nothing to do with those of another.
func (t *table) block(header ...string) {
	if t.begun {
		fmt.Fprintln(t)
	}
	t.begun = true
	t.line(header...)
}

func (t *table) line(cells ...string) {
	fmt.Fprintln(t, strings.TrimRight(strings.Join(cells, "\t"), "\t"))
}

// write prints the report as aligned text.
func (r *report) write(w io.Writer) error {
	t := &table{Writer: tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)}
	m := r.Machine
	t.block(fmt.Sprintf("%s, %d cores; libtorch %s; %s kernels; %s; other processes used %s cores", m.CPU, m.Cores, m.Libtorch, m.BLAS, m.Go, unknown(m.OtherCores)))
	r.writeParts(t)
	r.writePipes(t)
	r.writeIdle(t)
	t.writeComparisons(r.Ablations)
	t.writeComparisons(r.Schedules)
	r.writeOthers(t)
	r.writeProcesses(t)
	r.writeStepTimes(t)
	r.writePlans(t)
	r.writePlain(t)
	r.writeDevices(t)
	r.writeRemat(t)
	r.writeTargets(t)
	for _, note := range r.Notes {
		t.block(note)
	}
	return t.Flush()
}

// writeParts prints what is smaller than a workload.
func (r *report) writeParts(t *table) {
	if r.Product != nil {
		t.block("1024 x 1024 x 1024 float32, one thread", "GFLOP/s", "core's peak", "share")
		t.line("product", one(r.Product.GFLOPS, "%.0f"), one(r.Product.Peak, "%.0f"), one(r.Product.Share, "%.2f"))
	}
	if len(r.Cells) > 0 {
		t.block("us for each stage and micro-batch", "pipe", "plain loop", "overhead")
	}
	for _, c := range r.Cells {
		t.line(c.Name, one(c.Pipe.Median, "%.1f"), one(c.Plain.Median, "%.1f"), one(c.Overhead.Median, "%.1f"))
	}
}

func (r *report) writePipes(t *table) {
	if len(r.Workloads) == 0 {
		return
	}
	t.block("workload", "batch", "micro-batches", "checkpoint", "stages", "balance", "samples/s", "step ms", "min-max", "time to 1 stage", "min-max", "bubble bound", "peak MiB")
	for _, x := range r.Workloads {
		for _, p := range x.Pipes {
			t.line(x.name(), fmt.Sprint(x.Batch), fmt.Sprint(x.Chunks), x.Checkpoint.String(), fmt.Sprint(p.Stages), join("%d", p.Balance), one(p.Throughput.Median, "%.1f"),
				one(p.Step.Median, "%.1f"), span("%.1f", p.Step), one(p.Ratio.Median, "%.2f"), span("%.2f", p.Ratio), one(p.Bound, "%.2f"), join("%.1f", mebibytes(p.Peak)))
		}
	}
}

func (r *report) writeIdle(t *table) {
	if len(r.Workloads) == 0 {
		return
	}
	t.block("idle share by stage", "micro-batches", "stages", "steps", "measured", "replayed", "simulated", "points apart", "step ms", "replayed", "simulated")
	for _, x := range r.Workloads {
		for _, p := range x.Pipes {
			i := p.Idle
			t.line(x.name(), fmt.Sprint(x.Chunks), fmt.Sprint(p.Stages), fmt.Sprint(i.Steps), join("%.2f", i.Measured), join("%.2f", i.Replayed), join("%.2f", i.Predicted),
				join("%+.1f", i.Points), one(i.MeasuredMS, "%.1f"), one(i.ReplayedMS, "%.1f"), one(i.PredictedMS, "%.1f"))
		}
	}
}

func (r *report) writeOthers(t *table) {
	if len(r.Workloads) == 0 || len(r.Workloads[0].Others) == 0 {
		return
	}
	t.block("against", "workload", "micro-batches", "stages", "ours, samples/s", "theirs", "ours/theirs", "min-max", "BLAS kernels")
	for _, x := range r.Workloads {
		for _, o := range x.Others {
			if o.Error != "" {
				t.line(o.Name, x.name(), fmt.Sprint(x.Chunks), "failed: "+strings.ReplaceAll(o.Error, "\n", "; "))
			}
			for i, p := range o.Pipes {
				t.line(o.Name, x.name(), fmt.Sprint(x.Chunks), fmt.Sprint(p.Stages), one(x.Pipes[i].Throughput.Median, "%.1f"), one(p.Throughput.Median, "%.1f"),
					one(p.Faster.Median, "%.2f"), span("%.2f", p.Faster), o.BLAS)
			}
		}
	}
}

func (r *report) writeTargets(t *table) {
	if len(r.Targets) == 0 {
		return
	}
	t.block("target", "measured", "bound", "")
	for _, x := range r.Targets {
		sign, verdict := "at most", "missed"
		if x.AtLeast {
			sign = "at least"
		}
		if x.Met {
			verdict = "met"
		}
		t.line(x.Name, one(x.Value, "%.2f"), fmt.Sprintf("%s %.2f", sign, x.Bound), verdict)
	}
}

func one(v float64, format string) string { return fmt.Sprintf(format, v) }

func span(format string, s spread) string {
	return fmt.Sprintf(format+"-"+format, s.Min, s.Max)
}

func join[T any](format string, values []T) string {
	var s []string
	for _, v := range values {
		s = append(s, fmt.Sprintf(format, v))
	}
	return strings.Join(s, " ")
}

func mebibytes(bytes []int64) []float64 {
	var out []float64
	for _, b := range bytes {
		out = append(out, float64(b)/(1<<20))
	}
	return out
}

func unknown(v float64) string {
	if v < 0 {
		return "an unknown number of"
	}
	return fmt.Sprintf("%.2f", v)
}
