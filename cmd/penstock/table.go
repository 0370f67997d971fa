package main

import (
	"bytes"
	"io"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"
)

// table aligns columns, which tabs are between. It fits the width of the terminal, or 80 characters
// elsewhere: the last column goes on below where it is text that can be broken, and otherwise columns that
// have no place follow below, beside the first column once more. Programs read --format json.
type table struct {
	to    io.Writer
	width int
	text  bytes.Buffer
}

func newTable(w io.Writer) *table {
	width, _ := terminalWidth(w)
	return &table{to: w, width: width}
}

func (t *table) Write(text []byte) (int, error) { return t.text.Write(text) }

// Flush writes what there is, at the end.
func (t *table) Flush() error {
	text := t.text.String()
	t.text.Reset()
	var fitted strings.Builder
	whole, ended := strings.CutSuffix(text, "\n")
	for i, part := range strings.Split(whole, "\n\n") { // tables of their own
		if i > 0 {
			fitted.WriteString("\n\n")
		}
		fitted.WriteString(strings.Join(fitTable(strings.Split(part, "\n"), t.width), "\n"))
	}
	if text = fitted.String(); ended {
		text += "\n"
	}
	var aligned strings.Builder
	w := tabwriter.NewWriter(&aligned, 0, 0, between, ' ', 0)
	if _, err := io.WriteString(w, text); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(t.to, blanksAtEnd.ReplaceAllString(aligned.String(), ""))
	return err
}

// blanksAtEnd are those of cells without text at the end of lines.
var blanksAtEnd = regexp.MustCompile(`(?m) +$`)

// between is how many characters are between columns, and leastText how few a column of text may have.
const between, leastText = 2, 12

// fitTable makes rows of lines with tabs that are no wider than width, as far as they can be.
func fitTable(lines []string, width int) []string {
	var rows [][]string
	for _, line := range lines {
		rows = append(rows, strings.Split(line, "\t"))
	}
	widths := columnWidths(rows)
	if sum(widths) <= width {
		return lines
	}
	last := len(widths) - 1
	if room := width - sum(widths[:last]) - between; last > 0 && room >= leastText {
		if out, ok := breakLast(rows, last, room); ok {
			return out
		}
	}
	var out []string
	for from := 1; from <= last; {
		to := from + 1
		for to <= last && sum(append([]int{widths[0]}, widths[from:to+1]...)) <= width {
			to++
		}
		if from > 1 {
			out = append(out, "")
		}
		for _, row := range rows {
			if cells := row[min(from, len(row)):min(to, len(row))]; len(cells) > 0 || from == 1 {
				out = append(out, strings.Join(append([]string{row[0]}, cells...), "\t"))
			}
		}
		from = to
	}
	return out
}

// columnWidths is how many characters each column takes.
func columnWidths(rows [][]string) (widths []int) {
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			if n := utf8.RuneCountInString(cell); len(row) > 1 { // a line without columns is none
				widths[i] = max(widths[i], n)
			}
		}
	}
	return widths
}

// sum is what columns of these widths take.
func sum(widths []int) int {
	all := between * max(len(widths)-1, 0)
	for _, n := range widths {
		all += n
	}
	return all
}

// breakLast breaks the text in the last column after commas and spaces. It is not ok if a word is longer.
func breakLast(rows [][]string, last, room int) (out []string, ok bool) {
	for _, row := range rows {
		if len(row) <= last {
			out = append(out, strings.Join(row, "\t"))
			continue
		}
		pieces, ok := broken(row[last], room)
		if !ok {
			return nil, false
		}
		for i, piece := range pieces {
			head := row[:last]
			if i > 0 {
				head = slices.Repeat([]string{""}, last)
			}
			out = append(out, strings.Join(append(slices.Clone(head), piece), "\t"))
		}
	}
	return out, true
}

// broken is a text in pieces of at most room characters. The sign for per cent stays with its number.
func broken(text string, room int) (pieces []string, ok bool) {
	for utf8.RuneCountInString(text) > room {
		runes := []rune(text)
		at := room
		for at > 0 && runes[at-1] != ',' && (runes[at] != ' ' || at+1 < len(runes) && runes[at+1] == '%') {
			at--
		}
		if at == 0 {
			return nil, false
		}
		pieces = append(pieces, string(runes[:at]))
		text = strings.TrimPrefix(string(runes[at:]), " ")
	}
	return append(pieces, text), true
}

// wrapped is a text in lines of at most width characters, as far as it has commas and blanks to break at.
func wrapped(text string, width int) string {
	pieces, ok := broken(text, width)
	if !ok {
		return text
	}
	for i := range pieces {
		pieces[i] = strings.TrimRight(pieces[i], " ")
	}
	return strings.Join(pieces, "\n")
}

// filled is a text with its paragraphs in lines as long as they may be. Lines that begin with a blank stay.
func filled(text string, width int) string {
	var out, paragraph []string
	end := func() {
		if paragraph != nil {
			out, paragraph = append(out, wrapped(strings.Join(paragraph, " "), width)), nil
		}
	}
	for line := range strings.SplitSeq(text, "\n") {
		if line == "" || line[0] == ' ' {
			end()
			out = append(out, line)
		} else {
			paragraph = append(paragraph, line)
		}
	}
	end()
	return strings.Join(out, "\n")
}
