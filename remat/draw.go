package remat

import (
	"bytes"
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// DrawConfig says how large a drawing is.
type DrawConfig struct {
	Width int // characters in a line at most; 0: 100, and never less than 40
	Rows  int // of layers at most; 0: 60. Where a chain has more layers, a row is of several
}

// Draw draws a plan as text, with a row for each layer, and time from left to right:
//
//	0 l0    Koooooos##B
//	1 l1    oF      sB
//	2 l2     oS###B
//	3 l3       S#B
//	loss        L
//	memory  23589X75896
//
// A letter is an operation: F forward, K forward_keep, S forward_save, L loss, B backward; f, k and
// s are repetitions. Between them # is a layer whose X is kept, o one whose input is kept by
// itself, and blank one of which nothing is kept. The last row is the memory during the
// operation in tenths of the peak. Where there are more operations than columns, a column is
// several, and shows the last letter of a row. Operations that are not allowed are an error as in
// [Check].
func Draw(c Chain, ops []Op, d DrawConfig) (string, error) {
	report, err := Check(c, ops)
	if err != nil {
		return "", err
	}
	d.Width, d.Rows = max(40, cmp.Or(d.Width, 100)), max(1, cmp.Or(d.Rows, 60))
	n := len(c.Layers)
	perRow, nameWidth := (n+d.Rows-1)/d.Rows, len("memory")
	var names []string // of rows: of layers, of the loss, of the memory
	for first := 0; first < n; first += perRow {
		number := strconv.Itoa(first)
		if last := min(first+perRow, n) - 1; last > first {
			number += fmt.Sprint("-", last)
		}
		names = append(names, cut(number+" "+c.Layers[first].Name, maxName))
		nameWidth = max(nameWidth, utf8.RuneCountInString(names[len(names)-1]))
	}
	names = append(names, "loss", "memory")
	loss, memory := len(names)-2, len(names)-1
	columns := min(len(ops), d.Width-nameWidth-len("  "))
	cells := make([][]byte, len(names))
	for row := range cells {
		cells[row] = bytes.Repeat([]byte(" "), columns)
	}
	lettered := make([]int, len(names)) // by row: the column, from 1, of its last letter
	ran := make([]bool, n)
	r := newReplay(c)
	for k, o := range ops {
		at := k * columns / len(ops)
		took, _ := r.do(o)
		for i := range n { // a row of several layers shows the most that one of them keeps
			if row := i / perRow; lettered[row] != at+1 {
				if mark := " o#"[r.keeps(i)]; i%perRow == 0 || mark == '#' || cells[row][at] == ' ' {
					cells[row][at] = mark
				}
			}
		}
		row, letter := loss, o.String()[0]
		if o.Kind != LossStep {
			row = o.Layer / perRow
			if o.Kind != Backward && ran[o.Layer] {
				letter += 'a' - 'A'
			}
			ran[o.Layer] = true
		}
		cells[row][at], lettered[row] = letter, at+1
		tenths := int(10 * float64(took.peak()) / float64(max(report.Peak, 1)))
		cells[memory][at] = max(cells[memory][at], "0123456789X"[tenths])
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d operations, %d recomputed; 1 column = %.3g; X of the memory row = %d bytes\n", len(ops),
		report.Recomputed, float64(len(ops))/float64(columns), report.Peak)
	for i, name := range names {
		line := name + strings.Repeat(" ", nameWidth-utf8.RuneCountInString(name)) + "  " + string(cells[i])
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String(), nil
}

// maxName is how much of a layer's name is drawn.
const maxName = 24

func cut(s string, characters int) string {
	s = strings.Join(strings.Fields(s), " ") // no line breaks in a row
	if utf8.RuneCountInString(s) <= characters {
		return s
	}
	return string([]rune(s)[:characters-1]) + "…"
}
