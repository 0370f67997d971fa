package plan

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// DrawConfig says how large a drawing is.
type DrawConfig struct {
	Width int // characters in a line at most; 0: 100, and never less than 40
	Rows  int // of layers at most; 0: 60. Where a chain has more layers, a row is of several
}

// Draw draws what is computed and what is kept when, as text, one row per layer, time from left to right:
//
//	0 conv1   Koooooooo S##B
//	1 relu1    F       Koo.
//
// A letter is an operation: F forward, K forward_keep, S forward_save, L loss, B backward; f, k and s are those that a layer has run before. Between them # is where the layer's X is there, o where
// its input is there by itself, and blank where neither is. The last row is the memory during the operation in tenths of the peak. Where there are more operations than columns, a column is several, and shows the last
// letter of a row. Operations that are not allowed are an error as in [Check].
func Draw(c Chain, ops []Op, d DrawConfig) (string, error) {
	report, err := Check(c, ops)
	if err != nil {
		return "", err
	}
	if d.Width == 0 {
		d.Width = 100
	}
	if d.Rows == 0 {
		d.Rows = 60
	}
	n := len(c.Layers)
	perRow := (n + max(1, d.Rows) - 1) / max(1, d.Rows)
	var names []string
	nameWidth := 0
	for first := 0; first < n; first += perRow {
		name := fmt.Sprintf("%d %s", first, c.Layers[first].Name)
		if last := min(first+perRow, n) - 1; last > first {
			name = fmt.Sprintf("%d-%d %s", first, last, c.Layers[first].Name)
		}
		name = cut(name, maxName)
		names = append(names, name)
		nameWidth = max(nameWidth, utf8.RuneCountInString(name))
	}
	names = append(names, "loss", "memory")
	nameWidth = max(nameWidth, len("memory"))
	perColumn := max(1, ceil(len(ops), max(1, max(40, d.Width)-nameWidth-2)))
	columns := ceil(len(ops), perColumn)

	grid := make([][]byte, len(names))
	for i := range grid {
		grid[i] = []byte(strings.Repeat(" ", columns))
	}
	r := newReplay(c)
	ran := make([]bool, n)
	letters := make([]bool, len(names)) // rows that have one in this column
	for at, o := range ops {
		column := at / perColumn
		if at%perColumn == 0 {
			clear(letters)
		}
		took, _ := r.do(o)
		for i := n - 1; i >= 0; i-- {
			if row := i / perRow; !letters[row] {
				// Of several layers in a row the one that holds the most is shown.
				grid[row][column] = denser(grid[row][column], r.mark(i), i%perRow == perRow-1 || i == n-1)
			}
		}
		row, letter := n/perRow, byte('L')
		if row = len(names) - 2; o.Kind != LossStep {
			row, letter = o.Layer/perRow, kinds[o.Kind].short[0]
			if o.Kind != Backward && ran[o.Layer] {
				letter += 'a' - 'A'
			}
			ran[o.Layer] = true
		}
		grid[row][column], letters[row] = letter, true
		tenths := byte('0')
		if report.Peak > 0 {
			tenths = "0123456789X"[int(10*float64(took.before+took.made+took.tmp)/float64(report.Peak))]
		}
		if memory := grid[len(names)-1]; memory[column] < tenths || at%perColumn == 0 {
			memory[column] = tenths
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d operations, %d recomputed; 1 column = %d; X of the memory row = %d bytes\n", len(ops), report.Recomputed, perColumn, report.Peak)
	for i, name := range names {
		line := fmt.Sprintf("%s%s  %s", name, strings.Repeat(" ", nameWidth-utf8.RuneCountInString(name)), grid[i])
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

func ceil(a, b int) int { return (a + b - 1) / b }

// mark is how a layer is drawn between operations.
func (r *replay) mark(layer int) byte {
	switch {
	case r.state[layer+1] == within:
		return '#'
	case r.state[layer] == alone:
		return 'o'
	}
	return ' '
}

// denser is the mark that says more, or the second where it begins a new count.
func denser(have, mark byte, anew bool) byte {
	order := func(b byte) int { return strings.IndexByte(" o#", b) }
	if anew || order(mark) > order(have) {
		return mark
	}
	return have
}
