package metrics

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"penstock.example/internal/disk"
)

// FileName is the name of a run's file in its directory.
const FileName = "metrics.jsonl"

// Log appends lines to a file, each in a single write. So a run that is killed leaves at most its
// last line incomplete.
type Log struct {
	file    *os.File
	pending []byte         // not written yet, because the disk was full
	tested  map[bool]int64 // by Test.Validation: the step of the last test
}

// Open opens or makes the file of a run that has taken steps steps. It cuts off the lines of later
// steps, which the run takes again, and an incomplete last line. It refuses a file that is damaged
// earlier, and leaves it as it is. Call Sync before each checkpoint, so that a resumed run has no
// gap.
func Open(path string, steps int64) (*Log, error) {
	f, err := disk.OpenAppend(path)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	past, end, err := read(f, steps)
	if err == nil {
		err = f.Truncate(end)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("metrics: %s: %w", path, err)
	}
	return &Log{f, nil, map[bool]int64{false: lastOf(past.Tests), true: lastOf(past.Validations)}}, nil
}

// Read reads a file, which a run may be writing to. It ignores an incomplete last line.
func Read(path string) (h History, err error) {
	f, err := disk.Open(path)
	if err != nil {
		return h, fmt.Errorf("metrics: %w", err)
	}
	defer f.Close()
	if h, _, err = read(f, math.MaxInt64); err != nil {
		return History{}, fmt.Errorf("metrics: %s: %w", path, err)
	}
	return h, nil
}

// read reads the lines up to a step, and returns their length in bytes.
func read(r io.Reader, steps int64) (h History, end int64, err error) {
	lines := bufio.NewReader(r)
	for number := 1; ; number++ {
		text, err := lines.ReadBytes('\n')
		if err != nil && err != io.EOF {
			return h, end, err
		}
		past, whole := h, err == nil
		wrong := h.add(text)
		harmless := !whole || past.lastStep() >= steps // a line that is cut off may be damaged
		switch {
		case whole && wrong == nil && h.lastStep() <= steps:
			end += int64(len(text))
		case whole && wrong == nil, harmless && end > 0, end == 0 && (!whole || bytes.IndexByte(text, 0) >= 0):
			return past, end, nil
		default:
			return h, end, fmt.Errorf("line %d: %w; damaged or not of a run: move it away", number, wrong)
		}
	}
}

func (l *Log) Step(s Step) error { return l.append(s) }

// Test appends the line of a test or a validation, once for each step.
func (l *Log) Test(t Test) error {
	if t.Step <= l.tested[t.Validation] {
		return nil
	}
	l.tested[t.Validation] = t.Step
	return l.append(t)
}

// append writes a line after the pending ones.
func (l *Log) append(what any) error {
	text, err := json.Marshal(what) // refuses numbers that are not finite
	if err != nil {
		return fmt.Errorf("metrics: %s: %w", l.file.Name(), err)
	}
	l.pending = append(append(l.pending, text...), '\n')
	return l.flush()
}

func (l *Log) flush() error {
	n, err := l.file.Write(l.pending)
	l.pending = l.pending[n:]
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}

func (l *Log) Sync() error  { return errors.Join(l.flush(), l.file.Sync()) }
func (l *Log) Close() error { return errors.Join(l.flush(), l.file.Close()) }
