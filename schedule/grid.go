package schedule

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Grid draws the timeline as text, one row per worker, time from left to right:
//
//	1 column = 1ms
//	worker 0  F0 F1 F2 .  .  .  B0--- B1--- B2---
//	worker 1  .  F0 F1 F2 B0--- B1--- B2--- .  .
//
// An action is drawn as its text, for as many columns as it takes. The text has the stage if any
// worker has several. A transfer is drawn if it takes half a column or more: F2> is a send, >F2 a
// receive, and F2>3 and 0>F2 are transfers of a skip. A reduction, RED, is drawn in a row below its
// worker's, as both run at once.
//
// A column is as long as the shortest computation, or longer if the grid would get very wide. A
// shorter computation still takes a whole column, and its row runs ahead of the others until the
// worker's next idle time. The timeline must be valid.
func (t Timeline) Grid() string {
	column := t.column()
	rows, columns, width := t.rows(column, func(string) int { return 1 })
	return t.lines(fmt.Sprintf("1 column = %v", column), rows, func(spans []span) string {
		text, at := "", 0
		for _, s := range append(spans, span{from: columns}) {
			text += strings.Repeat(fmt.Sprintf(" %-*s", width, "."), max(0, s.from-at))
			if s.text != "" {
				if more := s.to - s.from - 1; more > 0 { // the columns of a span are joined
					s.text += strings.Repeat("-", more*(width+1)+width-len(s.text))
				}
				text += fmt.Sprintf(" %-*s", width, s.text)
			}
			at = s.to
		}
		return text
	})
}

// GridWidth is Grid if it fits the number of characters. Otherwise it is denser, with one character
// a column and no blanks:
//
//	1 character = 5ms
//	worker 0  F0F1F2......B0--B1--B2--
//	worker 1  ..F0F1F2B0--B1--B2--....
//
// A computation is at least as wide as its text, and a transfer is drawn if its text fits. Rows
// with too many texts end in "…".
func (t Timeline) GridWidth(characters int) string {
	grid := t.Grid()
	if !slices.ContainsFunc(strings.Split(grid, "\n"), func(l string) bool { return len(l) > characters }) {
		return grid
	}
	makespan := t.Makespan()
	room := max(1, characters-t.nameWidth()-len("  "))
	column := max(1, makespan/time.Duration(room))
	length := func(text string) int { return len(text) }
	rows, columns, _ := t.rows(column, length)
	for columns > room && column < makespan {
		column += column/32 + 1
		rows, columns, _ = t.rows(column, length)
	}
	unit := time.Duration(1) // of the third digit
	for 1000*unit <= column {
		unit *= 10
	}
	return t.lines(fmt.Sprintf("1 character = %v", column.Round(unit)), rows, func(spans []span) string {
		text := ""
		for _, s := range append(spans, span{columns, columns, ""}) {
			text += strings.Repeat(".", s.from-len(text)) + s.text
			text += strings.Repeat("-", s.to-len(text))
		}
		if columns > room {
			text = text[:room-1] + "…"
		}
		return " " + text
	})
}

// rows places actions on columns of a given duration. Each worker has a row, and another one for
// its reductions. widthOf gives a text's least number of columns. rows also returns the number of
// columns and the length of the longest text.
func (t Timeline) rows(column time.Duration, widthOf func(string) int) (rows [][]span, columns,
	width int) {
	start, end := t.bounds()
	round := func(at time.Duration) int { return int((at - start + column/2) / column) }
	label := t.labels()
	rows = make([][]span, 2*t.Workers)
	free := make([]int, 2*t.Workers)
	columns, width = round(end), 1
	for w := range t.Workers {
		for _, e := range t.eventsOf(w) {
			text, row := label(e.Action), 2*w
			if e.Action.Kind == Reduce {
				row++
			}
			least := widthOf(text)
			always := row%2 == 0 && !e.Action.Kind.Transfer()
			if !always && e.End-e.Start < (time.Duration(2*least-1)*column+1)/2 {
				continue
			}
			from := max(free[row], round(e.Start))
			free[row] = max(from+least, round(e.End))
			rows[row] = append(rows[row], span{from, free[row], text})
			columns, width = max(columns, free[row]), max(width, len(text))
		}
	}
	return rows, columns, width
}

func (t Timeline) lines(first string, rows [][]span, draw func([]span) string) string {
	text := first + "\n"
	for i, spans := range rows {
		name, line := fmt.Sprintf("worker %d", i/2), draw(spans)
		if i%2 == 1 {
			if name, line = "", strings.ReplaceAll(line, ".", " "); spans == nil {
				continue
			}
		}
		text += strings.TrimRight(fmt.Sprintf("%-*s %s", t.nameWidth(), name, line), " ") + "\n"
	}
	return text
}

func (t Timeline) nameWidth() int { return len("worker ") + len(strconv.Itoa(max(t.Workers-1, 0))) }

// span is a label on the columns from <= column < to.
type span struct {
	from, to int
	text     string
}

// labels returns the function that gives each action of this timeline its label.
func (t Timeline) labels() func(Action) string {
	stages, several := map[int]int{}, false // by worker
	for _, e := range t.Events {
		s, some := stages[e.Worker]
		several = several || some && s != e.Action.Stage
		stages[e.Worker] = e.Action.Stage
	}
	return func(a Action) string {
		if several {
			return a.String()
		}
		if a.Kind == Reduce {
			return "RED"
		}
		text, peer := fmt.Sprintf("%c%d", a.Kind.letter(), a.MicroBatch), ""
		if a.distance() > 1 {
			peer = strconv.Itoa(a.Peer)
		}
		switch {
		case a.Kind.Send():
			return text + ">" + peer
		case a.Kind.Receive():
			return peer + ">" + text
		}
		return text
	}
}

// column chooses the duration of a column, for at most four columns per computation of the busiest
// worker, or minColumns if that is more.
func (t Timeline) column() time.Duration {
	const minColumns = 64
	makespan := t.Makespan()
	computations := make([]int, t.Workers)
	var shortest time.Duration
	for _, e := range t.Events {
		if d := e.End - e.Start; !e.Action.Kind.Transfer() && e.Action.Kind != Reduce && d > 0 {
			computations[e.Worker]++
			if shortest == 0 || d < shortest {
				shortest = d
			}
		}
	}
	if shortest == 0 {
		return max(1, makespan/minColumns)
	}
	columns := max(minColumns, 4*slices.Max(computations))
	return max(shortest, makespan/time.Duration(columns))
}
