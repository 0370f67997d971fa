package main

import (
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
	Goal       float64 `json:"goal,omitempty"`    // the lowest good value; 0 is none
	AtMost     bool    `json:"at_most,omitempty"` // the goal is the highest good value, and may be 0
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
	number := func(v float64) string { return fmt.Sprintf("%.3g", v) }
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

// report is everything that a run measured.
type report struct {
	Machine machine  `json:"machine"`
	PyTorch []string `json:"pytorch,omitempty"` // versions and BLAS kernels of the opponents
	Rows    []row    `json:"rows"`
}

// add adds a row and prints it at once.
func (r *report) add(x row) {
	r.Rows = append(r.Rows, x)
	fmt.Fprintln(os.Stderr, "bench:", strings.Join(x.cells(), "  "))
}

// fail adds a row of a failed opponent. It returns nil, as the run goes on.
func (r *report) fail(x row, err error) error {
	x.Error = lastLine(err.Error())
	r.add(x)
	return nil
}

// text prints the table.
func (r *report) text(w io.Writer) error {
	fmt.Fprintf(w, "%+v\nPyTorch of the opponents: %s\n\n", r.Machine, strings.Join(r.PyTorch, ", "))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "what\topponent\tratio\trange\tgoal\t\tconditions")
	for _, x := range r.Rows {
		fmt.Fprintln(t, strings.Join(x.cells(), "\t"))
	}
	return t.Flush()
}
