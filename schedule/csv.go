package schedule

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strings"
)

// ParseCSV reads a program in the form that torch.distributed.pipelining writes and reads: a row
// for each worker, an action in each field, and empty fields where it does nothing.
//
//	0F0,0F1,,0I0,0W0,0B1
//	1F0,1I0,1W0,1F1,1B1
//
// Where no field is a transfer they are added, as for any schedule. Otherwise all between workers
// must be there, as 0SEND_F1, 1RECV_F1, 1SEND_B1 and 0RECV_B1: the stage that acts, and the
// micro-batch. Those between stages of one worker are added in either case. (0F4;3B1)OVERLAP_F_B is
// a forward and then a backward, as a worker here does one thing at a time. 0REDUCE_GRAD is the
// reduction 0RED. UNSHARD and RESHARD are left out: weights are where they are used. The highest
// numbers say how many stages and micro-batches the program has.
//
// The first fault is returned with its line and column, both counted from 1. Whether the program
// can run is [Check]'s question.
func ParseCSV(text string) (*Program, error) {
	p := &Program{}
	transfers := false
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
			actions, err := parseCSVField(strings.TrimSpace(field))
			for _, a := range actions {
				p.Stages = max(p.Stages, a.Stage+1, a.Peer+1)
				p.MicroBatches = max(p.MicroBatches, a.MicroBatch+1)
				transfers = transfers || a.Kind.Transfer()
			}
			if err == nil && len(actions) > 0 {
				err = checkSize(p.Stages, 0, p.MicroBatches)
			}
			if err != nil {
				line, column := r.FieldPos(i)
				return nil, fmt.Errorf("schedule: line %d, column %d: %w", line, column, err)
			}
			list = append(list, actions...)
		}
		p.Workers = append(p.Workers, list)
	}
	if p.Stages == 0 {
		return nil, errors.New("schedule: line 1, column 1: no action, want a row of them for each worker, such as 0F0,0F1,0B0,0B1")
	}
	if transfers {
		p.addInner()
		return p, nil
	}
	p.fill(p.Workers)
	if Check(p, Limits{}) == nil {
		p.meet(parts)
	}
	return p, nil
}

// csvKind is a word for a kind of action in a CSV.
type csvKind struct {
	word string
	kind Kind // zero for what is left out
}

// csvKinds are all words that a CSV has for kinds of actions.
var csvKinds = []csvKind{
	{"SEND_F", SendActivation}, {"RECV_F", ReceiveActivation},
	{"SEND_B", SendGradient}, {"RECV_B", ReceiveGradient},
	{"UNSHARD", 0}, {"RESHARD", 0}, {"REDUCE_GRAD", Reduce},
	{"F", Forward}, {"B", Backward}, {"I", BackwardInput}, {"W", BackwardWeight},
}

// parseCSVField reads the actions of one field: none if it is empty.
func parseCSVField(field string) ([]Action, error) {
	if field == "" {
		return nil, nil
	}
	inner, overlap := strings.CutPrefix(field, "(")
	if overlap {
		list, found := strings.CutSuffix(inner, ")OVERLAP_F_B")
		if !found {
			return nil, fmt.Errorf("%q, want several actions as in (0F4;3B1)OVERLAP_F_B", field)
		}
		var out []Action
		for text := range strings.SplitSeq(list, ";") {
			actions, err := parseCSVAction(strings.TrimSpace(text))
			if err != nil {
				return nil, err
			}
			out = append(out, actions...)
		}
		return out, nil
	}
	return parseCSVAction(field)
}

// parseCSVAction reads an action; none for UNSHARD and RESHARD.
func parseCSVAction(text string) ([]Action, error) {
	digits := len(text) - len(strings.TrimLeft(text, "0123456789"))
	for _, k := range csvKinds {
		microBatch, found := strings.CutPrefix(text[digits:], k.word)
		if !found {
			continue
		}
		a := Action{Kind: k.kind}
		var err error
		if a.Stage, err = parseNumber(text[:digits]); err != nil {
			return nil, fmt.Errorf("%q: stage: %w", text, err)
		}
		switch {
		case k.kind == 0:
			return nil, nil
		case k.kind == Reduce && microBatch == "":
			return []Action{a}, nil
		case k.kind == Reduce:
			return nil, fmt.Errorf("%q: %q follows; a reduction is of all micro-batches", text, microBatch)
		}
		if a.MicroBatch, err = parseNumber(microBatch); err != nil {
			return nil, fmt.Errorf("%q: micro-batch: %w", text, err)
		}
		switch k.kind {
		case SendActivation, ReceiveGradient:
			a.Peer = a.Stage + 1
		case ReceiveActivation, SendGradient:
			if a.Peer = a.Stage - 1; a.Peer < 0 {
				return nil, fmt.Errorf("%q: there is no stage before the first", text)
			}
		}
		return []Action{a}, nil
	}
	return nil, fmt.Errorf("%q, want a stage, a kind and a micro-batch, as in 0F2, 0B2, 0I2, 0W2 or 0SEND_F2", text)
}

// addInner adds the transfers between stages of one worker: a send after what makes the value, a
// receive before what uses it.
func (p *Program) addInner() {
	home := p.Placement()
	inner := func(s, t int) bool { return t >= 0 && t < p.Stages && home[s] == home[t] }
	for w, actions := range p.Workers {
		var list []Action
		for _, a := range actions {
			receive, send, from, to := ReceiveActivation, SendActivation, a.Stage-1, a.Stage+1
			if a.Kind.gradients() {
				receive, send, from, to = ReceiveGradient, SendGradient, to, from
			}
			uses := a.Kind == Forward || a.Kind.gradients()
			if uses && inner(a.Stage, from) {
				list = append(list, Action{receive, a.Stage, a.MicroBatch, from})
			}
			list = append(list, a)
			if uses && inner(a.Stage, to) {
				list = append(list, Action{send, a.Stage, a.MicroBatch, to})
			}
		}
		p.Workers[w] = list
	}
}

// CSV returns the program in the form that [ParseCSV] reads and torch.distributed.pipelining loads.
// With transfers it lists the transfers between workers, and reductions ("compute_comms" there).
// Without it lists only computations ("compute_only", to which PyTorch adds reductions itself).
// Recomputations are left out, as PyTorch has none in a program. It fails for a program that [Check]
// refuses, and for skips with transfers, for which that form has no word.
func (p *Program) CSV(transfers bool) (string, error) {
	if err := Check(p, Limits{}); err != nil {
		return "", err
	}
	if len(p.Skips) > 0 && transfers {
		return "", fmt.Errorf("schedule: CSV: the program has the skip %v, and a row has no word for it; "+
			"list computations only", p.Skips[0])
	}
	words, home := map[Kind]string{}, p.Placement()
	for _, k := range csvKinds {
		words[k.kind] = k.word
	}
	var b strings.Builder
	for w, actions := range p.Workers {
		var fields []string
		for _, a := range actions {
			switch {
			case a.Kind == Recompute || (a.Kind == Reduce || a.Kind.Transfer()) && !transfers ||
				a.Kind.Transfer() && home[a.Peer] == w:
			case a.Kind == Reduce:
				fields = append(fields, fmt.Sprint(a.Stage, words[Reduce]))
			default:
				fields = append(fields, fmt.Sprintf("%d%s%d", a.Stage, words[a.Kind], a.MicroBatch))
			}
		}
		b.WriteString(strings.Join(fields, ",") + "\n")
	}
	return b.String(), nil
}

// Load reads a program in either form: as text if the first word is program, otherwise as a CSV.
func Load(text string) (*Program, error) {
	for _, mark := range []string{"\ufeff", "\xff\xfe", "\xfe\xff"} { // of UTF-8 and UTF-16
		if strings.HasPrefix(text, mark) {
			return nil, errors.New("schedule: line 1, column 1: a byte order mark, want the file as plain UTF-8")
		}
	}
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
