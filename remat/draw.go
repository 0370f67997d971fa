package remat

import (
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
	g := newDrawing(c, len(ops), d)
	r := NewReplay(c)
	for at, o := range ops {
		took, _ := r.Do(o)
		g.turn(at * g.columns / len(ops))
		g.keeps(r)
		g.runs(o)
		g.holds(took, report.Peak)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d operations, %d recomputed; 1 column = %.3g; X of the memory row = %d bytes\n", len(ops), report.Recomputed, float64(len(ops))/float64(g.columns), report.Peak)
	for i, name := range g.names {
		line := fmt.Sprintf("%s%s  %s", name, strings.Repeat(" ", g.nameWidth-utf8.RuneCountInString(name)), g.cells[i])
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String(), nil
}

// drawing is the rows as far as they are drawn.
type drawing struct {
	names     []string // of rows: of layers, of the loss, of the memory
	nameWidth int
	perRow    int // layers
	columns   int
	cells     [][]byte // by row and column

	at     int    // column
	fresh  bool   // nothing is drawn in it
	letter []bool // by row: it has a letter in this column
	ran    []bool // by layer
}

func newDrawing(c Chain, ops int, d DrawConfig) *drawing {
	if d.Width == 0 {
		d.Width = 100
	}
	if d.Rows == 0 {
		d.Rows = 60
	}
	n, rows := len(c.Layers), max(1, d.Rows)
	g := &drawing{perRow: (n + rows - 1) / rows, nameWidth: len("memory"), ran: make([]bool, n), at: -1}
	for first := 0; first < n; first += g.perRow {
		number := strconv.Itoa(first)
		if last := min(first+g.perRow, n) - 1; last > first {
			number += fmt.Sprint("-", last)
		}
		name := cut(number+" "+c.Layers[first].Name, maxName)
		g.names = append(g.names, name)
		g.nameWidth = max(g.nameWidth, utf8.RuneCountInString(name))
	}
	g.names = append(g.names, "loss", "memory")
	g.columns = min(ops, max(40, d.Width)-g.nameWidth-len("  "))
	g.letter = make([]bool, len(g.names))
	for range g.names {
		g.cells = append(g.cells, []byte(strings.Repeat(" ", g.columns)))
	}
	return g
}

// turn turns to a column.
func (g *drawing) turn(column int) {
	if g.fresh = column != g.at; g.fresh {
		g.at = column
		clear(g.letter)
	}
}

// keeps draws what is there. A row of several layers shows the most that one of them keeps.
func (g *drawing) keeps(r *Replay) {
	for row := range g.names[:len(g.names)-2] {
		if g.letter[row] {
			continue
		}
		most := KeepsNothing
		for i := row * g.perRow; i < min((row+1)*g.perRow, len(g.ran)); i++ {
			most = max(most, r.Keeps(i))
		}
		g.cells[row][g.at] = " o#"[most]
	}
}

// runs draws the operation.
func (g *drawing) runs(o Op) {
	row, letter := len(g.names)-2, o.String()[0]
	if o.Kind != LossStep {
		row = o.Layer / g.perRow
		if o.Kind != Backward && g.ran[o.Layer] {
			letter += 'a' - 'A'
		}
		g.ran[o.Layer] = true
	}
	g.cells[row][g.at], g.letter[row] = letter, true
}

// holds draws the memory.
func (g *drawing) holds(took Cost, peak int64) {
	tenths := 0
	if peak > 0 {
		tenths = int(10 * float64(took.Peak()) / float64(peak))
	}
	row := g.cells[len(g.names)-1]
	if digit := "0123456789X"[tenths]; g.fresh || digit > row[g.at] {
		row[g.at] = digit
	}
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
