package schedule

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// String returns the program's text form, which [Parse] reads: a header, then a line per worker.
//
//	program whole stages=2 micro-batches=2
//	worker 0: 0F0 0F0>1 0F1 0F1>1 1>0B0 0B0 1>0B1 0B1
//	worker 1: 0>1F0 1F0 0>1F1 1F1 1B0 1B0>0 1B1 1B1>0
//
// The header also has skips, and a capacity of the links, if the program has them:
//
//	program whole stages=4 micro-batches=2 skips=0>2,0>3 capacity=1
func (p *Program) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "program %v stages=%d micro-batches=%d", p.Phase, p.Stages, p.MicroBatches)
	for i, e := range p.Skips {
		b.WriteString([]string{" skips=", ","}[min(i, 1)] + e.String())
	}
	if p.Capacity == Meet {
		b.WriteString(" capacity=meet")
	} else if p.Capacity != 0 {
		fmt.Fprintf(&b, " capacity=%d", p.Capacity)
	}
	for w, actions := range p.Workers {
		fmt.Fprintf(&b, "\nworker %d:", w)
		for _, a := range actions {
			b.WriteString(" " + a.String())
		}
	}
	return b.String() + "\n"
}

// Parse reads a program's text form, or a CSV of torch.distributed.pipelining. In the text form a #
// begins a comment, and empty lines are skipped. A CSV has a row for each worker, an action in each
// field, and empty fields where the worker does nothing:
//
//	0F0,0F1,,0I0,0W0,0B1
//	1F0,1I0,1W0,1F1,1B1
//
// (0F4;3B1)OVERLAP_F_B is a forward and then a backward, as a worker does one thing at a time.
// Transfers, such as 0SEND_F1, are placed anew. The program has as many stages and micro-batches as
// the highest numbers say.
//
// An error names the line and the word or field of the first fault, counted from 1. [Check] says
// whether the program can run.
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
		parse := (*Program).parseWorker
		if p == nil {
			if words[0] != "program" {
				return parseCSV(text)
			}
			p, parse = &Program{}, (*Program).parseHeader
		}
		if at, err := parse(p, words); err != nil {
			return nil, fmt.Errorf("schedule: line %d, word %d: %w", line, at+1, err)
		}
	}
	if p == nil {
		return nil, errors.New("schedule: no program, want one that begins with the word program, or a CSV")
	}
	return p, nil
}

// parseHeader reads the words of the first line. at is the index of a faulty word.
func (p *Program) parseHeader(words []string) (at int, err error) {
	phase := -1
	if len(words) > 1 {
		phase = slices.Index(phaseWords, words[1])
	}
	if phase < 0 {
		return 1, fmt.Errorf("want program and one of %s", strings.Join(phaseWords, ", "))
	}
	p.Phase = Phase(phase)
	for i, word := range words[2:] {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case "stages":
			p.Stages, err = parseNumber(value)
		case "micro-batches":
			p.MicroBatches, err = parseNumber(value)
		case "skips":
			for pair := range strings.SplitSeq(value, ",") {
				from, to, _ := strings.Cut(pair, ">")
				f, bad := parseNumber(from)
				t, worse := parseNumber(to)
				if bad != nil || worse != nil {
					err = fmt.Errorf("%q is not a pair of stages, want skips such as skips=0>2,0>3", pair)
				}
				p.Skips = append(p.Skips, Edge{f, t})
			}
		case "capacity":
			if p.Capacity = Meet; value != "meet" {
				p.Capacity, err = parseNumber(value)
			}
		default:
			err = fmt.Errorf("%q, want stages=, micro-batches=, skips= or capacity=", word)
		}
		if err != nil {
			return i + 2, err
		}
	}
	return 1, p.checkHeader()
}

// parseWorker reads the words of a worker's line. at is the index of a faulty word.
func (p *Program) parseWorker(words []string) (at int, err error) {
	label := fmt.Sprintf("%d:", len(p.Workers))
	if words[0] != "worker" || len(words) == 1 || words[1] != label {
		return min(1, len(words)-1), fmt.Errorf("%q, want worker %s as workers are numbered in order",
			strings.Join(words[:min(2, len(words))], " "), label)
	}
	actions := make([]Action, len(words)-2)
	for i, word := range words[2:] {
		var err error
		if actions[i], err = ParseAction(word); err != nil {
			return i + 2, err
		}
	}
	p.Workers = append(p.Workers, actions)
	return 0, nil
}

// csvSkipped are the transfers of a CSV, and the gathering and freeing of sharded weights.
var csvSkipped = regexp.MustCompile(`^\d+(?:SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|RESHARD)\d*$`)

func parseCSV(text string) (*Program, error) {
	p := &Program{}
	line := 0
	for row := range strings.Lines(text) {
		line++
		if row = strings.TrimSpace(row); row == "" {
			continue
		}
		var list []Action
		for i, field := range strings.Split(row, ",") {
			field = strings.TrimSpace(field)
			if both, found := strings.CutSuffix(field, ")OVERLAP_F_B"); found {
				field = strings.TrimPrefix(both, "(")
			}
			for word := range strings.SplitSeq(field, ";") {
				if word = strings.TrimSpace(word); word == "" || csvSkipped.MatchString(word) {
					continue
				}
				a, err := ParseAction(strings.Replace(word, "REDUCE_GRAD", "RED", 1))
				if err == nil && a.Kind.Transfer() {
					err = fmt.Errorf("%v; want SEND_F, RECV_F, SEND_B or RECV_B for transfers", a)
				}
				if err == nil {
					p.Stages, p.MicroBatches = max(p.Stages, a.Stage+1), max(p.MicroBatches, a.MicroBatch+1)
					list = append(list, a)
					err = p.checkHeader()
				}
				if err != nil {
					return nil, fmt.Errorf("schedule: line %d, field %d: %w", line, i+1, err)
				}
			}
		}
		p.Workers = append(p.Workers, list)
	}
	if p.Stages == 0 {
		return nil, fmt.Errorf("schedule: line %d: no action, want a row of them for each worker, such as "+
			"0F0,0F1,0B0,0B1", line+1)
	}
	p.fill(p.Workers)
	if Check(p) == nil {
		p.meet()
	}
	return p, nil
}

// CSV returns the program's computations in the form that [Parse] reads and
// torch.distributed.pipelining loads as "compute_only": PyTorch adds transfers and reductions
// itself and has no recomputations. It fails with the error of [Check].
func (p *Program) CSV() (string, error) {
	if err := Check(p); err != nil {
		return "", err
	}
	var b strings.Builder
	for _, actions := range p.Workers {
		var fields []string
		for _, a := range actions {
			if !a.Kind.Transfer() && a.Kind != Recompute && a.Kind != Reduce {
				fields = append(fields, a.String())
			}
		}
		b.WriteString(strings.Join(fields, ",") + "\n")
	}
	return b.String(), nil
}

// parseNumber reads a number as the text form writes it, without leading zeros.
func parseNumber(digits string) (int, error) {
	n, err := strconv.ParseUint(digits, 10, 31)
	if err != nil || strconv.FormatUint(n, 10) != digits {
		return 0, fmt.Errorf("%q is not a decimal number below 2^31 without leading zeros", digits)
	}
	return int(n), nil
}
