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

// headerOptions are the words of the header that need not be there, in their order.
var headerOptions = []struct {
	name   string
	format func(p *Program) string // "" leaves it out
	parse  func(p *Program, text string) error
}{
	{"skips=", func(p *Program) string {
		words := make([]string, len(p.Skips))
		for i, e := range p.Skips {
			words[i] = e.String()
		}
		return strings.Join(words, ",")
	}, func(p *Program, text string) error {
		for pair := range strings.SplitSeq(text, ",") {
			from, to, _ := strings.Cut(pair, ">")
			f, wrong := parseNumber(from)
			t, err := parseNumber(to)
			if wrong != nil || err != nil {
				return fmt.Errorf("%q is not a pair of stages, want skips such as skips=0>2,0>3", pair)
			}
			p.Skips = append(p.Skips, Edge{f, t})
		}
		return nil
	}},
	{"capacity=", func(p *Program) string {
		switch p.Capacity {
		case 0:
			return ""
		case Meet:
			return "meet"
		}
		return fmt.Sprint(p.Capacity)
	}, func(p *Program, text string) (err error) {
		if p.Capacity = Meet; text != "meet" {
			if p.Capacity, err = parseNumber(text); err != nil || p.Capacity == 0 {
				return fmt.Errorf("%q, want meet or the number of values that may wait, from 1", text)
			}
		}
		return nil
	}},
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
		{"micro-batches= and a number", func(word string) bool { return parseField(word, "micro-batches=", &p.MicroBatches) }},
	}
	for i, field := range fields {
		if i == len(words) {
			return nil, i, fmt.Errorf("the header ends, want %s", field.want)
		}
		if !field.read(words[i]) {
			return nil, i, fmt.Errorf("%q, want %s", words[i], field.want)
		}
	}
	at := len(fields)
	for _, o := range headerOptions {
		if at == len(words) {
			break
		}
		if text, found := strings.CutPrefix(words[at], o.name); found {
			if err := o.parse(p, text); err != nil {
				return nil, at, err
			}
			at++
		}
	}
	if at < len(words) {
		return nil, at, fmt.Errorf("%q after the header", words[at])
	}
	return p, 2, checkSize(p.Stages, len(p.Skips), p.MicroBatches)
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
	label := fmt.Sprintf("%d:", len(p.Workers))
	if words[0] != "worker" || len(words) == 1 || words[1] != label {
		return min(1, len(words)-1), fmt.Errorf("%q, want worker %s as workers are numbered in order", strings.Join(words[:min(2, len(words))], " "), label)
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
