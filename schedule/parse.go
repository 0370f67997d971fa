package schedule

import (
	"fmt"
	"strings"
)

// Parse reads a program's text form. Words are separated by blanks, what follows a # is a comment,
// and empty lines are skipped; the rest is as strict as [Program.String] writes it, workers
// numbered from 0. The first fault is returned with its line and word, both counted from 1.
//
// Parse reads, it does not judge: whether the program can run is [Check]'s question.
func Parse(text string) (*Program, error) {
	var p *Program
	line := 0
	for content := range strings.Lines(text) {
		line++
		content, _, _ = strings.Cut(content, "#")
		words := strings.Fields(content)
		if len(words) == 0 {
			continue
		}
		var at int
		var err error
		if p == nil {
			p, at, err = parseHeader(words)
		} else {
			at, err = p.parseWorker(words)
		}
		if err != nil {
			return nil, fmt.Errorf("schedule: line %d, word %d: %w", line, at+1, err)
		}
	}
	if p == nil {
		return nil, fmt.Errorf("schedule: line %d: no header, want \"program whole stages=4 micro-batches=2\"", line+1)
	}
	return p, nil
}

// parseHeader reads the words of the first line. With an error it returns the index of the word at
// fault.
func parseHeader(words []string) (*Program, int, error) {
	p := &Program{}
	fields := []struct {
		want string
		read func(word string) bool
	}{
		{"program", func(word string) bool { return word == "program" }},
		{"whole, forward-only or backward-only", p.Phase.parse},
		{"stages= and a number", func(word string) bool { return parseField(word, "stages=", &p.Stages) }},
		{"micro-batches= and a number",
			func(word string) bool { return parseField(word, "micro-batches=", &p.MicroBatches) }},
	}
	for i, field := range fields {
		if i == len(words) {
			return nil, i, fmt.Errorf("the header ends, want %s", field.want)
		}
		if !field.read(words[i]) {
			return nil, i, fmt.Errorf("%q, want %s", words[i], field.want)
		}
	}
	if at, err := p.parseOptions(words[len(fields):]); err != nil {
		return nil, len(fields) + at, err
	}
	return p, 2, checkSize(p.Stages, len(p.Skips), p.MicroBatches)
}

// parseOptions reads those words of the header that need not be there. With an error it returns the
// index of the word at fault.
func (p *Program) parseOptions(words []string) (int, error) {
	at := 0
	if at < len(words) {
		if list, found := strings.CutPrefix(words[at], skipsPrefix); found {
			var err error
			if p.Skips, err = parseSkips(list); err != nil {
				return at, err
			}
			at++
		}
	}
	if at < len(words) {
		if text, found := strings.CutPrefix(words[at], capacityPrefix); found {
			var err error
			if p.Capacity, err = parseCapacity(text); err != nil {
				return at, err
			}
			at++
		}
	}
	if at < len(words) {
		return at, fmt.Errorf("%q after the header", words[at])
	}
	return at, nil
}

// parse sets the phase that the word names, or reports false.
func (p *Phase) parse(word string) bool {
	for _, phase := range []Phase{Whole, ForwardOnly, BackwardOnly} {
		if word == phase.String() {
			*p = phase
			return true
		}
	}
	return false
}

func parseField(word, name string, into *int) bool {
	digits, found := strings.CutPrefix(word, name)
	n, err := parseNumber(digits)
	*into = n
	return found && err == nil
}

// parseWorker reads the words of one worker's line. With an error it returns the index of the word
// at fault.
func (p *Program) parseWorker(words []string) (int, error) {
	if words[0] != "worker" {
		return 0, fmt.Errorf("%q, want worker", words[0])
	}
	label := fmt.Sprintf("%d:", len(p.Workers))
	if len(words) == 1 {
		return 1, fmt.Errorf("the line ends, want %s", label)
	}
	if words[1] != label {
		return 1, fmt.Errorf("%q, want %s as workers are numbered in order", words[1], label)
	}
	var actions []Action
	for i, word := range words[2:] {
		a, err := parseAction(word)
		if err != nil {
			return i + 2, err
		}
		actions = append(actions, a)
	}
	p.Workers = append(p.Workers, actions)
	return 0, nil
}
