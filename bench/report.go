package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
)

// row is a line of the table: a ratio of our throughput to an opponent's, or another number.
type row struct {
	What       string  `json:"what"`
	Opponent   string  `json:"opponent,omitempty"`
	Value      spread  `json:"value"`
	Format     string  `json:"-"`                 // of the value; "" is %.2f
	Goal       float64 `json:"goal,omitempty"`    // the least; 0 is none
	AtMost     bool    `json:"at_most,omitempty"` // the goal is the most, and may be 0
	Conditions string  `json:"conditions,omitempty"`
	Error      string  `json:"error,omitempty"` // of the opponent; then there is no value
}

func (r row) met() bool {
	return r.AtMost && r.Value.Median <= r.Goal || !r.AtMost && r.Value.Median >= r.Goal
}

func (r row) cells() []string {
	if r.Error != "" {
		return []string{r.What, r.Opponent, "failed", "", "", "", r.Error}
	}
	number := func(v float64) string { return fmt.Sprintf(cmp.Or(r.Format, "%.2f"), v) }
	between, bound, verdict := "", "", ""
	if r.Value.Min != r.Value.Max {
		between = number(r.Value.Min) + "-" + number(r.Value.Max)
	}
	if r.Goal != 0 || r.AtMost {
		sign := map[bool]string{true: "<= ", false: ">= "}[r.AtMost]
		bound, verdict = sign+number(r.Goal), map[bool]string{true: "met", false: "missed"}[r.met()]
	}
	return []string{r.What, r.Opponent, number(r.Value.Median), between, bound, verdict, r.Conditions}
}

// block is a table of details.
type block struct {
	Header []string   `json:"header"` // the first one is the title
	Lines  [][]string `json:"lines"`
}

func (b *block) add(cells ...any) {
	var line []string
	for _, c := range cells {
		switch v := c.(type) {
		case float64:
			line = append(line, fmt.Sprintf("%.1f", v))
		case spread:
			line = append(line, fmt.Sprintf("%.1f (%.1f-%.1f)", v.Median, v.Min, v.Max))
		default:
			line = append(line, fmt.Sprint(v))
		}
	}
	b.Lines = append(b.Lines, line)
}

// report is everything that a run measured.
type report struct {
	Machine machine  `json:"machine"`
	PyTorch []string `json:"pytorch,omitempty"` // versions and BLAS kernels of the opponents
	Rows    []row    `json:"rows"`
	Steps   *block   `json:"steps"`
	Peaks   *block   `json:"peaks"`
	Notes   []string `json:"notes,omitempty"`
}

func newReport() report {
	return report{
		Machine: describeMachine(),
		Steps:   &block{Header: []string{"ms a step", "opponent", "ours", "theirs", "their threads"}},
		Peaks: &block{Header: []string{"equal peaks", "theirs", "their peak MiB", "by its share", "their ms",
			"our peak MiB", "our ms", "predicted - measured, bytes", "ours/theirs"}},
	}
}

// add adds a row, and shows it at once.
func (r *report) add(x row) {
	r.Rows = append(r.Rows, x)
	fmt.Fprintln(os.Stderr, "bench:", strings.Join(x.cells(), "  "))
}

// fail adds a row of an opponent that failed, which is no failure of the run.
func (r *report) fail(x row, err error) error {
	x.Error = lastLine(err.Error())
	r.add(x)
	return nil
}

// text prints the table, then the details.
func (r *report) text(w io.Writer) error {
	fmt.Fprintf(w, "%s\nPyTorch of the opponents: %s\n\n", r.Machine, strings.Join(r.PyTorch, ", "))
	table := block{Header: []string{"what", "opponent", "ratio", "range", "goal", "", "conditions"}}
	for _, x := range r.Rows {
		table.Lines = append(table.Lines, x.cells())
	}
	for _, b := range []*block{&table, r.Steps, r.Peaks} {
		if len(b.Lines) == 0 {
			continue
		}
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, l := range append([][]string{b.Header}, b.Lines...) {
			fmt.Fprintln(t, strings.TrimRight(strings.Join(l, "\t"), "\t"))
		}
		fmt.Fprintln(t)
		if err := t.Flush(); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(w, strings.Join(r.Notes, "\n"))
	return err
}
