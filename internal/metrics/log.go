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

// Log appends lines to a file. Every line goes to the system at once and in one piece, so a run that
// is killed leaves at most the last line incomplete.
type Log struct {
	file    *os.File
	pending []byte // lines that could not be written yet
	tests   lastTests
}

// Open opens or makes the file of a run that has taken steps steps. Lines of later steps are cut off:
// the run takes those steps again. So is the rest of a line that was cut short after the last step. A
// file that is damaged before is refused and stays as it is. So that a resumed run has no gap, call
// Sync before each checkpoint.
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
	return &Log{f, nil, lastTests{false: lastOf(past.Tests), true: lastOf(past.Validations)}}, nil
}

// Read reads a file that a run may be writing to: a last line without its end is left out.
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

// read reads lines up to a step, and returns how many bytes they have.
func read(r io.Reader, steps int64) (h History, end int64, err error) {
	lines := bufio.NewReader(r)
	for number := 1; ; number++ {
		text, err := lines.ReadBytes('\n')
		if err != nil && err != io.EOF {
			return h, end, err
		}
		past, whole := h, err == nil
		wrong := h.add(text)
		cut := !whole || past.lastStep() >= steps // only its end may be lost
		switch {
		case whole && wrong == nil && h.lastStep() <= steps:
			end += int64(len(text))
		case whole && wrong == nil, cut && end > 0, end == 0 && (!whole || bytes.IndexByte(text, 0) >= 0):
			return past, end, nil
		default:
			return h, end, fmt.Errorf("line %d: %w; it is damaged or not of a run: move it away",
				number, wrong)
		}
	}
}

// Step appends the line of a step.
func (l *Log) Step(s Step) error { return l.append(s) }

// Test appends the line of a test or a validation, once for each step.
func (l *Log) Test(t Test) error {
	if !l.tests.isNew(t) {
		return nil
	}
	return l.append(t)
}

// append appends a line, after lines that a full disk had no space for.
func (l *Log) append(what any) error {
	text, err := json.Marshal(what) // which refuses numbers that are not finite
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

// Sync writes what could not be written before, and returns when all would survive a loss of power.
func (l *Log) Sync() error { return errors.Join(l.flush(), l.file.Sync()) }

// Close writes what could not be written before and closes the file.
func (l *Log) Close() error { return errors.Join(l.flush(), l.file.Close()) }
