package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// fitted is a table for a terminal of a width.
func fitted(t testing.TB, width int, text string) string {
	t.Helper()
	var b bytes.Buffer
	table := newTable(&b)
	table.width = width
	fmt.Fprint(table, text)
	if err := table.Flush(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// Text in the last column is broken, columns without a place follow below, tables that fit stay.
func TestTableFits(t *testing.T) {
	for _, row := range []struct {
		width      int
		text, want string
	}{
		{20, "A\tB\nlong\tc\n", "A     B\nlong  c\n"},
		{0, "A\t" + strings.Repeat("x", 90) + "\n", "A  " + strings.Repeat("x", 90) + "\n"},
		{40, "MODEL\tN\tOPTIONS\nmlp\t6\tclasses=10,channels=1,size=28,width=256,depth=2\n",
			"MODEL  N  OPTIONS\nmlp    6  classes=10,channels=1,size=28,\n          width=256,depth=2\n"},
		{24, "STAGE\tFORWARD\tBACKWARD\tSAVED\n0\t1 ms\t2 ms\t3 KiB\n", "STAGE  FORWARD  BACKWARD\n0      1 ms     2 ms\n\nSTAGE  SAVED\n0      3 KiB\n"},
		{29, "step\t2 ms, none less (-37.1 %)\n", "step  2 ms, none less\n      (-37.1 %)\n"}, // a number and its sign stay together
		{10, "a\tlongerthanthat\tb\n", "a  longerthanthat\n\na  b\n"},
	} {
		if got := fitted(t, row.width, row.text); got != row.want {
			t.Errorf("%d:\n%s\nwant\n%s", row.width, got, row.want)
		}
	}
}

// No line is wider than the terminal where the first column and any other have a place, and no cell is lost.
func TestTableLosesNothing(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		columns, count := rapid.IntRange(1, 9).Draw(r, "columns"), rapid.IntRange(1, 5).Draw(r, "rows")
		width := rapid.IntRange(24, 90).Draw(r, "width")
		var text strings.Builder
		cells := map[string]int{}
		for i := range count {
			for k := range columns {
				word := rapid.StringMatching(`[a-z]{0,8}`).Draw(r, "cell") + fmt.Sprintf("%d.%d", i, k)
				cells[word]++
				if k > 0 {
					text.WriteByte('\t')
				}
				text.WriteString(word)
			}
			text.WriteByte('\n')
		}
		got := fitted(t, width, text.String())
		for line := range strings.Lines(got) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > width && columns > 1 {
				r.Fatalf("%d characters of %d:\n%s", n, width, got)
			}
		}
		for _, word := range strings.Fields(got) {
			delete(cells, word)
		}
		if len(cells) > 0 {
			r.Fatalf("lost %v:\n%s", cells, got)
		}
	})
}
