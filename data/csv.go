package data

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"penstock.example/internal/disk"
)

// CSV describes files of comma-separated values (RFC 4180). Each line is a sample: a target in one column
// and finite numbers in the others. Inputs have the shape [columns 1 1]. The zero value detects the format.
type CSV struct {
	// Target is the name or the number, from 1, of the targets' column. "" means the last.
	Target string

	// Task is Classification or Regression. "" means regression if all targets are numbers and one has
	// a fraction, otherwise classification. Info.ClassNames has the classes, sorted as whole numbers or
	// as text; the targets 1 and 1.0 are one class.
	Task Task

	// Header says whether the first line has names. If it is nil, the line has names if it differs in kind,
	// numbers or text, from the columns below. Open refuses a file whose first line may be either.
	Header *bool

	Separator rune // 0 means a comma

	// Standardise scales each column of inputs to mean 0 and deviation 1 over the training samples. With
	// Options.TrainedOn it uses the mean and deviation of that set.
	Standardise bool
}

// openCSV reads one or two tables. The first decides the classes.
func openCSV(paths []string, o Options) (train, test Dataset, err error) {
	c := o.CSV
	var sets []*arraySet
	var names []string
	for _, path := range paths {
		t, err := readTable(path, c, o.TrainedOn)
		if err == nil && len(sets) == 0 {
			c.Task, names, err = t.task(c.Task)
			if o.TrainedOn != nil && o.TrainedOn.ClassNames != nil {
				names = o.TrainedOn.ClassNames
			}
		}
		var set *arraySet
		if err == nil {
			set, err = t.set(c.Task, names)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", path, err)
		}
		sets = append(sets, set)
	}
	if train, test, err = trainAndTest(o, sets); err != nil {
		return nil, nil, err
	}
	if o.TrainedOn == nil && c.Standardise {
		o.Mean, o.Std = meanAndDeviation(train, sets[0])
	}
	for _, set := range sets {
		if err := set.normalise(o.Mean, o.Std); err != nil {
			return nil, nil, err
		}
	}
	return train, test, nil
}

type table struct {
	names   []string // of the inputs' columns, then of the target's; nil without a header
	target  int      // Info.TargetColumn
	inputs  []float64
	targets []string
	lines   []int // of the targets
}

// maxColumns bounds the input of a model, so that the sizes of its first layer fit an int64.
const maxColumns = 1 << 16

// readTable reads a table. If table and trainedOn have column names, columns get the order of trainedOn.
func readTable(path string, c CSV, trainedOn *Info) (*table, error) {
	content, err := disk.Read(path, disk.MaxText)
	if err == nil {
		err = disk.CheckUTF8(content)
	}
	if err != nil {
		return nil, err
	}
	first, header, err := c.firstLine(content)
	if err != nil {
		return nil, err
	}
	order, err := c.columnOrder(first, header, trainedOn)
	if err != nil {
		return nil, fmt.Errorf("line 1: %w", err)
	}
	t, inputs, target := &table{}, order[:len(order)-1], order[len(order)-1]
	if !header && target < len(inputs) {
		t.target = target + 1
	}
	for line, record := range c.lines(content, &err) {
		switch {
		case header && t.names == nil:
			for _, i := range order {
				t.names = append(t.names, record[i])
			}
			continue
		case record[target] == "":
			return nil, fmt.Errorf("line %d: no target; want a class or a number: fill it in, or remove the "+
				"line", line)
		}
		if t.inputs, err = appendNumbers(t.inputs, line, record, inputs); err != nil {
			return nil, err
		}
		t.targets, t.lines = append(t.targets, record[target]), append(t.lines, line)
	}
	if err == nil && len(t.targets) == 0 {
		err = errors.New("no line with numbers; want a sample a line")
	}
	return t, err
}

// lines yields the number and the values of each line of a table, without blanks around values. The
// next line overwrites the values. An error is stored in failed and ends the lines.
func (c CSV) lines(content []byte, failed *error) iter.Seq2[int, []string] {
	r := csv.NewReader(bytes.NewReader(bytes.TrimPrefix(content, []byte("\ufeff"))))
	r.Comma, r.ReuseRecord, r.TrimLeadingSpace = cmp.Or(c.Separator, ','), true, true
	return func(yield func(int, []string) bool) {
		for {
			record, err := r.Read()
			if err == io.EOF {
				return
			} else if err != nil {
				*failed = fmt.Errorf("%w; want as many values as in the first line, separated by %q, and "+
					"quotes around a value that has a quote", err, r.Comma)
				return
			}
			for i, text := range record {
				record[i] = strings.TrimSpace(text)
			}
			if line, _ := r.FieldPos(0); !yield(line, record) {
				return
			}
		}
	}
}

func appendNumbers(to []float64, line int, record []string, columns []int) ([]float64, error) {
	for _, i := range columns {
		x, err := parse(record[i])
		if err != nil {
			return to, fmt.Errorf("line %d, column %d: %w", line, i+1, err)
		}
		to = append(to, x)
	}
	return to, nil
}

// firstLine returns the first line and whether it is a header, judged by at most a thousand lines
// below it. Names may be numbers: pandas calls columns 0, 1, 2 and so on if they have no names.
func (c CSV) firstLine(content []byte) (first []string, header bool, err error) {
	var alike []bool // whether a value below is of the same kind, by column
	below, fractions := 0, false
	for _, record := range c.lines(content, &err) {
		if first == nil {
			first, alike = slices.Clone(record), make([]bool, len(record))
			continue
		}
		for i, text := range record {
			alike[i] = alike[i] || text == "" || isNumber(text) == isNumber(first[i])
			fractions = fractions || isWhole(first[i]) && isNumber(text) && !isWhole(text)
		}
		if below++; below == 1000 {
			break
		}
	}
	switch {
	case err != nil:
		return nil, false, err
	case c.Header != nil:
		return first, *c.Header, nil
	case !slices.ContainsFunc(first, isNumber): // a sample has at least one number
		return first, true, nil
	}
	// A header's numbers ascend. A line that looks like a sample may still be a header if its numbers
	// count up: from 0, or, if the lines below have fractions, from any number (2019, 2020, 2021).
	differs, ascending, counted, last := false, true, true, -1
	if fractions {
		last, _ = strconv.Atoi(first[0])
		last--
	}
	for i, text := range first {
		differs = differs || text != "" && below > 0 && !alike[i]
		if n, err := strconv.Atoi(text); isNumber(text) {
			ascending, counted = ascending && err == nil && n > last, counted && err == nil && n == last+1
			last = n
		}
	}
	if differs && !ascending || !differs && counted {
		err = errors.New("line 1 may have names or numbers; want header=1 or header=0")
	}
	return first, differs, err
}

func parse(text string) (float64, error) {
	x, err := strconv.ParseFloat(text, 64)
	switch {
	case err == nil && finite(x):
		return x, nil
	case hasDecimalComma(text):
		return 0, fmt.Errorf("%q has a decimal comma; want a decimal point", text)
	}
	return 0, fmt.Errorf("%.40q; want a finite number: fill it in, or remove the line or the column", text)
}

func isNumber(text string) bool {
	_, err := strconv.ParseFloat(text, 64)
	return err == nil
}

func isWhole(text string) bool {
	_, err := strconv.Atoi(text)
	return err == nil
}

func hasDecimalComma(text string) bool {
	return !isNumber(text) && isNumber(strings.Replace(text, ",", ".", 1))
}

// columnOrder returns the inputs' columns, in the order of trainedOn if both have names, then the target's.
func (c CSV) columnOrder(first []string, header bool, trainedOn *Info) (order []int, err error) {
	if len(first) > maxColumns {
		return nil, fmt.Errorf("%d columns; want at most %d", len(first), maxColumns)
	} else if len(first) < 2 {
		return nil, errors.New("want a column for the target and at least one for numbers: a file with " +
			"columns, or another separator")
	}
	target := len(first) - 1
	if c.Target != "" {
		n, err := strconv.Atoi(c.Target)
		if i := slices.Index(first, c.Target); header && i >= 0 {
			target = i
		} else if target = n - 1; err != nil || n < 1 || n > len(first) {
			return nil, fmt.Errorf("no column %q; want a name in the header, or a number from 1 to %d",
				c.Target, len(first))
		}
	}
	place := map[string]int{}
	for i, name := range first {
		if _, twice := place[name]; header && twice {
			return nil, fmt.Errorf("the header has the column %q twice; want each name once", name)
		}
		if place[name] = i; i != target {
			order = append(order, i)
		}
	}
	order = append(order, target)
	if !header || trainedOn == nil || trainedOn.Columns == nil {
		return order, nil
	}
	for i, name := range trainedOn.Columns {
		at, ok := place[name]
		if !ok || len(trainedOn.Columns) != len(first) {
			return nil, fmt.Errorf("the columns are %s, and the model was trained with %s; want the "+
				"same, in any order", strings.Join(first, ", "), strings.Join(trainedOn.Columns, ", "))
		}
		order[i] = at
	}
	return order, nil
}

// task returns the task and the names of the classes, sorted as numbers if all are whole numbers.
func (t *table) task(asked Task) (Task, []string, error) {
	numbers, whole, distinct := true, true, map[string]float64{}
	for i, text := range t.targets {
		x, isWhole := wholeNumber(text)
		numbers, whole, distinct[className(text)] = numbers && isNumber(text), whole && isWhole, x
		if asked == "" && hasDecimalComma(text) {
			_, err := parse(text)
			return "", nil, fmt.Errorf("line %d: the target %w", t.lines[i], err)
		}
	}
	const many, most = 10, 100 // classes
	n := len(distinct)
	switch {
	case asked == Regression || asked == "" && numbers && !whole:
		return Regression, nil, nil
	case asked == "" && whole && (n > most && n > len(t.targets)/10 || n > many && n > len(t.targets)/2):
		return "", nil, fmt.Errorf("%d different whole numbers are targets of %d lines: classes or "+
			"amounts? want task=classification or task=regression", n, len(t.targets))
	}
	names := slices.Sorted(maps.Keys(distinct))
	if whole {
		slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(distinct[a], distinct[b]) })
	}
	return Classification, names, nil
}

// className returns the name of a target's class. It is the target's text, but 1 for 1.0.
func className(text string) string {
	if x, whole := wholeNumber(text); whole && strings.ContainsAny(text, ".eE") {
		return strconv.FormatFloat(x, 'f', -1, 64)
	}
	return text
}

func wholeNumber(text string) (x float64, whole bool) {
	x, err := strconv.ParseFloat(text, 64)
	return x + 0, err == nil && math.Trunc(x) == x && finite(x) // no -0
}

// set converts the table to a set. It ignores names in a regression.
func (t *table) set(task Task, names []string) (*arraySet, error) {
	n := int64(len(t.targets))
	input := Array{Kind: Float32, Shape: []int64{n, int64(len(t.inputs)) / n, 1, 1},
		Float32: converted[float32](t.inputs)}
	target := Array{Kind: Int64, Shape: []int64{n}}
	if task == Regression {
		target, names = Array{Kind: Float32, Shape: []int64{n, 1}}, nil
	} else if len(names) < 2 {
		return nil, fmt.Errorf("all targets are %q; want at least two classes, or another column as target",
			names)
	}
	labels := map[string]int64{}
	for label, name := range names {
		labels[className(name)] = int64(label)
	}
	for i, text := range t.targets {
		if task == Regression {
			x, err := parse(text)
			if err != nil {
				return nil, fmt.Errorf("line %d: the target %w", t.lines[i], err)
			}
			target.Float32 = append(target.Float32, float32(x))
			continue
		}
		label, ok := labels[className(text)]
		if !ok {
			return nil, fmt.Errorf("line %d: %.40q is no class to train with; the classes are %s", t.lines[i],
				text, strings.Join(names, ", "))
		}
		target.Int64 = append(target.Int64, label)
	}
	set, err := newArrays("csv", len(names), input, target)
	if err != nil {
		return nil, err
	}
	set.info.TargetColumn = t.target
	set.info.ClassNames, set.info.Columns, set.input.exact = names, t.names, t.inputs
	return set, nil
}

// meanAndDeviation returns the mean and the deviation of each column over train, which is whole or
// a subset of it. A constant column has the deviation 1.
func meanAndDeviation(train Dataset, whole *arraySet) (means, deviations []float64) {
	rows, columns := train.Len(), whole.info.Input.Size()
	at := func(i int) int { return i }
	if s, ok := train.(*subset); ok {
		at = func(i int) int { return s.indices[i] }
	}
	for c := range columns {
		var sum, squares float64
		for i := range rows {
			sum += whole.input.exact[at(i)*columns+c]
		}
		mean := sum / float64(rows)
		for i := range rows {
			d := whole.input.exact[at(i)*columns+c] - mean
			squares += d * d
		}
		deviation := math.Sqrt(squares / float64(rows))
		if deviation == 0 {
			deviation = 1
		}
		means, deviations = append(means, mean), append(deviations, deviation)
	}
	return means, deviations
}
