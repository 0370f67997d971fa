package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// write prints the report as aligned text.
func (r *report) write(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	line := func(cells ...string) { fmt.Fprintln(t, strings.TrimRight(strings.Join(cells, "\t"), "\t")) }

	m := r.Machine
	fmt.Fprintf(t, "%s, %d cores; libtorch %s; %s kernels; %s; other processes used %s cores\n", m.CPU, m.Cores, m.Libtorch, m.BLAS, m.Go, unknown(m.OtherCores))
	fmt.Fprintln(t)
	line("1024 x 1024 x 1024 float32, one thread", "GFLOP/s", "core's peak", "share")
	line("product", fmt.Sprintf("%.0f", r.Product.GFLOPS), fmt.Sprintf("%.0f", r.Product.Peak), fmt.Sprintf("%.2f", r.Product.Share))
	fmt.Fprintln(t)
	line("us for each stage and micro-batch", "pipe", "plain loop", "overhead")
	for _, c := range r.Cells {
		line(c.Name, fmt.Sprintf("%.1f", c.Pipe.Median), fmt.Sprintf("%.1f", c.Plain.Median), fmt.Sprintf("%.1f", c.Overhead.Median))
	}
	fmt.Fprintln(t)
	line("workload", "batch", "micro-batches", "checkpoint", "balance", "step ms", "min-max", "2/1 stages", "min-max", "bubble bound", "idle", "peak MiB")
	for _, x := range r.Workloads {
		for i, s := range x.Stages {
			layers := x.Balance
			ratio := []string{fmt.Sprintf("%.2f", x.Ratio.Median), span("%.2f", x.Ratio), fmt.Sprintf("%.2f", x.Bound)}
			if i == 0 {
				layers, ratio = []int{x.Balance[0] + x.Balance[1]}, []string{"", "", ""}
			}
			cells := []string{x.Model, fmt.Sprint(x.Batch), fmt.Sprint(x.Chunks), x.Checkpoint, join("%d", layers), fmt.Sprintf("%.1f", s.Step.Median), span("%.1f", s.Step)}
			cells = append(cells, ratio...)
			line(append(cells, join("%.2f", s.Idle), join("%.1f", mebibytes(s.Peak)))...)
		}
	}
	if r.compared() {
		fmt.Fprintln(t)
		line("against", "workload", "micro-batches", "stages", "ours ms", "theirs ms", "ours/theirs", "min-max", "BLAS kernels")
		for _, x := range r.Workloads {
			for _, o := range x.Others {
				for i := range o.Step {
					cells := []string{o.Name, x.Model, fmt.Sprint(x.Chunks), fmt.Sprint(i + 1), fmt.Sprintf("%.1f", x.Stages[i].Step.Median)}
					if o.Error != "" {
						line(append(cells, "failed: "+o.Error)...)
						continue
					}
					line(append(cells, fmt.Sprintf("%.1f", o.Step[i].Median), fmt.Sprintf("%.2f", o.Ours[i].Median), span("%.2f", o.Ours[i]), o.BLAS)...)
				}
			}
		}
	}
	fmt.Fprintln(t)
	line("target", "measured", "bound", "")
	for _, x := range r.Targets {
		sign, verdict := "at most", "missed"
		if x.AtLeast {
			sign = "at least"
		}
		if x.Met {
			verdict = "met"
		}
		line(x.Name, fmt.Sprintf("%.2f", x.Value), fmt.Sprintf("%s %.2f", sign, x.Bound), verdict)
	}
	if r.Note != "" {
		fmt.Fprintln(t)
		fmt.Fprintln(t, r.Note)
	}
	return t.Flush()
}

func (r *report) compared() bool { return len(r.Workloads) > 0 && len(r.Workloads[0].Others) > 0 }

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
