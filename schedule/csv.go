package schedule

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strings"
)

// csvWords are the words that a CSV has for kinds of actions. What has no kind here is left out:
// transfers follow from the computations, and weights are where they are used.
var csvWords = []struct {
	word string
	kind Kind
}{
	{"SEND_F", 0}, {"RECV_F", 0}, {"SEND_B", 0}, {"RECV_B", 0}, {"UNSHARD", 0}, {"RESHARD", 0},
	{"REDUCE_GRAD", Reduce},
	{"F", Forward}, {"B", Backward}, {"I", BackwardInput}, {"W", BackwardWeight},
}

// ParseCSV reads a program in the form that torch.distributed.pipelining writes and reads: a row
// for each worker, an action in each field, and empty fields where it does nothing.
//
//	0F0,0F1,,0I0,0W0,0B1
//	1F0,1I0,1W0,1F1,1B1
//
// (0F4;3B1)OVERLAP_F_B is a forward and then a backward, as a worker here does one thing at a time.
// Transfers, such as 0SEND_F1, are placed anew, as for any schedule. The highest numbers say how
// many stages and micro-batches the program has.
//
// The first fault is returned with its line and column, both counted from 1. Whether the program
// can run is [Check]'s question.
func ParseCSV(text string) (*Program, error) {
	p := &Program{}
	r := csv.NewReader(strings.NewReader(text))
	r.FieldsPerRecord = -1
	for {
		record, err := r.Read()
		if err == io.EOF {
			break
		}
		if bad := (*csv.ParseError)(nil); errors.As(err, &bad) {
			return nil, fmt.Errorf("schedule: line %d, column %d: %w", bad.Line, bad.Column, bad.Err)
		}
		var list []Action
		for i, field := range record {
			both, overlap := strings.CutSuffix(strings.TrimPrefix(strings.TrimSpace(field), "("), ")OVERLAP_F_B")
			for word := range strings.SplitSeq(both, ";") {
				a, err := parseCSVAction(strings.TrimSpace(word))
				if overlap != strings.HasPrefix(strings.TrimSpace(field), "(") {
					err = fmt.Errorf("%q, want several actions as in (0F4;3B1)OVERLAP_F_B", field)
				}
				if a.Kind != 0 {
					p.Stages, p.MicroBatches = max(p.Stages, a.Stage+1), max(p.MicroBatches, a.MicroBatch+1)
					list = append(list, a)
					if err == nil {
						err = checkSize(p.Stages, 0, p.MicroBatches)
					}
				}
				if err != nil {
					line, column := r.FieldPos(i)
					return nil, fmt.Errorf("schedule: line %d, column %d: %w", line, column, err)
				}
			}
		}
		p.Workers = append(p.Workers, list)
	}
	if p.Stages == 0 {
		return nil, errors.New("schedule: line 1, column 1: no action, want a row of them for each worker, such as 0F0,0F1,0B0,0B1")
	}
	p.fill(p.Workers)
	if Check(p, Limits{}) == nil {
		p.meet(parts)
	}
	return p, nil
}

// parseCSVAction reads an action. It has no kind if the word is left out.
func parseCSVAction(text string) (a Action, err error) {
	if text == "" {
		return a, nil
	}
	digits := len(text) - len(strings.TrimLeft(text, "0123456789"))
	for _, k := range csvWords {
		microBatch, found := strings.CutPrefix(text[digits:], k.word)
		if !found {
			continue
		}
		a.Kind = k.kind
		if a.Stage, err = parseNumber(text[:digits]); err == nil && k.kind != 0 && k.kind != Reduce {
			a.MicroBatch, err = parseNumber(microBatch)
		}
		if err != nil {
			return Action{}, fmt.Errorf("%q: %w", text, err)
		}
		return a, nil
	}
	return a, fmt.Errorf("%q, want a stage, a kind and a micro-batch, as in 0F2, 0B2, 0I2 or 0W2", text)
}

// CSV returns the program's computations in the form that [ParseCSV] reads and
// torch.distributed.pipelining loads as "compute_only". It adds transfers and reductions itself, and
// has no recomputations. The error is that of [Check].
func (p *Program) CSV() (string, error) {
	if err := Check(p, Limits{}); err != nil {
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

// Load reads a program in either form: as text if the first word is program, otherwise as a CSV.
func Load(text string) (*Program, error) {
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		if words := strings.Fields(line); len(words) > 0 && words[0] != "program" {
			return ParseCSV(text)
		} else if len(words) > 0 {
			break
		}
	}
	return Parse(text)
}
