package planner

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"penstock/remat"
	"penstock/schedule"
)

// String is the plan's text form, which [Parse] reads: a block for each stage, then the program.
// Micro-batches with the same operations share a line. Predictions of 0 are left out.
//
//	stage 0 device=cpu:0 layers=2 policy=except_last
//	  0 S0 L B0
//	  1-3 K0 L S0 B0
//	stage 1 device=cpu:1 layers=3 policy=optimal units=1,2 limit=900 base=400 peak=880 time=52.5 once=50 bound=52.5
//	  0-3 times=4.5/1.5/7 S0 K1 L S1 B1 B0
//	program whole stages=2 micro-batches=4
//	worker 0: ...
func (p *Plan) String() string {
	var b strings.Builder
	for i, s := range p.Stages {
		fmt.Fprintf(&b, "stage %d device=%s layers=%d policy=%s", i, s.Device, s.Layers, s.Policy)
		if s.Units != nil {
			fmt.Fprintf(&b, " units=%s", strings.ReplaceAll(strings.Trim(fmt.Sprint(s.Units), "[]"), " ", ","))
		}
		if s.Prologue > 0 {
			fmt.Fprintf(&b, " prologue=%d", s.Prologue)
		}
		for _, f := range s.fields() {
			if word := f.format(); word != "0" {
				fmt.Fprintf(&b, " %s=%s", f.name, word)
			}
		}
		b.WriteByte('\n')
		for from := 0; from < len(s.MicroBatches); {
			m, to := s.MicroBatches[from], from
			for to+1 < len(s.MicroBatches) && m.equal(s.MicroBatches[to+1]) {
				to++
			}
			words := []string{" ", strconv.Itoa(from)}
			if to > from {
				words[1] += "-" + strconv.Itoa(to)
			}
			if m.Forward != 0 || m.Recompute != 0 || m.Backward != 0 {
				words = append(words, timesPrefix+number(m.Forward)+"/"+number(m.Recompute)+"/"+number(m.Backward))
			}
			for _, op := range m.Ops {
				words = append(words, op.String())
			}
			b.WriteString(strings.Join(words, " ") + "\n")
			from = to + 1
		}
	}
	b.WriteString(p.Program.String())
	return b.String()
}

// timesPrefix begins the word for the times of a forward, a recomputation and a backward.
const timesPrefix = "times="

func (m MicroBatch) equal(o MicroBatch) bool {
	return slices.Equal(m.Ops, o.Ops) && m.Forward == o.Forward && m.Recompute == o.Recompute && m.Backward == o.Backward
}

func number(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }

// field is a number of a stage in the text form.
type field struct {
	name string
	in   *int64
	time *float64
}

func (f field) format() string {
	if f.time != nil {
		return number(*f.time)
	}
	return strconv.FormatInt(*f.in, 10)
}

func (f field) parse(word string) (err error) {
	if f.time == nil {
		*f.in, err = strconv.ParseInt(word, 10, 64)
		return err
	}
	if *f.time, err = strconv.ParseFloat(word, 64); err == nil && !(*f.time >= 0 && *f.time <= math.MaxFloat64) {
		err = errors.New("no number of microseconds")
	}
	return err
}

// fields lists the numbers of a stage that may be left out.
func (s *StagePlan) fields() []field {
	return []field{
		{name: "limit", in: &s.Limit}, {name: "base", in: &s.Base}, {name: "peak", in: &s.Peak},
		{name: "waits", in: &s.waits},
		{name: "time", time: &s.Time}, {name: "once", time: &s.Once}, {name: "bound", time: &s.LowerBound},
		{name: "spread", time: &s.Spread},
	}
}

// Parse reads the text that [Plan.String] writes, and checks the plan.
func Parse(text string) (*Plan, error) {
	p := &Plan{}
	lines := strings.Split(text, "\n")
	for at, line := range lines {
		if strings.HasPrefix(line, "program ") {
			var err error
			if p.Program, err = schedule.Parse(strings.Join(lines[at:], "\n")); err != nil {
				return nil, fmt.Errorf("planner: from line %d on: %w", at+1, err)
			}
			return p, p.Check()
		}
		if err := p.parseLine(line); err != nil {
			return nil, fmt.Errorf("planner: line %d: %w", at+1, err)
		}
	}
	return nil, fmt.Errorf("planner: line %d: the text ends without a program", len(lines))
}

func (p *Plan) parseLine(line string) error {
	words := strings.Fields(line)
	switch {
	case len(words) == 0:
		return nil
	case words[0] == "stage":
		return p.parseStage(words[1:])
	case len(p.Stages) == 0:
		return fmt.Errorf("%q; want a line that begins with stage 0", line)
	}
	return p.Stages[len(p.Stages)-1].parseOps(words)
}

func (p *Plan) parseStage(words []string) (err error) {
	if len(words) == 0 || words[0] != strconv.Itoa(len(p.Stages)) {
		return fmt.Errorf("stage %s; want stage %d next", strings.Join(words[:min(1, len(words))], ""), len(p.Stages))
	}
	s := StagePlan{}
	seen := map[string]bool{}
	for _, word := range words[1:] {
		name, value, _ := strings.Cut(word, "=")
		if seen[name] {
			return fmt.Errorf("%s is given twice", name)
		}
		seen[name] = true
		switch name {
		case "device":
			s.Device = value
		case "layers":
			s.Layers, err = strconv.Atoi(value)
		case "policy":
			s.Policy = Policy(value)
		case "units":
			for part := range strings.SplitSeq(value, ",") {
				n, bad := strconv.Atoi(part)
				if bad != nil {
					return fmt.Errorf("units=%s: %w", value, bad)
				}
				s.Units = append(s.Units, n)
			}
		case "prologue":
			s.Prologue, err = strconv.Atoi(value)
		default:
			i := slices.IndexFunc(s.fields(), func(f field) bool { return f.name == name })
			if i < 0 {
				return fmt.Errorf("%q; want device, layers, policy, units, prologue, limit, base, peak, waits, time, "+
					"once, bound or spread, each with =", word)
			}
			err = s.fields()[i].parse(value)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", word, err)
		}
	}
	p.Stages = append(p.Stages, s)
	return nil
}

// maxMicroBatches is the most micro-batches that a line of operations may stand for.
const maxMicroBatches = 1 << 20

func (s *StagePlan) parseOps(words []string) error {
	first, last, several := strings.Cut(words[0], "-")
	if !several {
		last = first
	}
	from, err := strconv.Atoi(first)
	to, bad := strconv.Atoi(last)
	if err != nil || bad != nil || from != len(s.MicroBatches) || to < from || to >= maxMicroBatches {
		return fmt.Errorf("micro-batches %q; want those from %d on, as 0 or 0-3", words[0], len(s.MicroBatches))
	}
	var m MicroBatch
	words = words[1:]
	if len(words) > 0 && strings.HasPrefix(words[0], timesPrefix) {
		if m, err = parseTimes(words[0]); err != nil {
			return err
		}
		words = words[1:]
	}
	if m.Ops, err = remat.ParseOps(strings.Join(words, " ")); err != nil {
		return err
	}
	for range to - from + 1 {
		s.MicroBatches = append(s.MicroBatches, m)
	}
	return nil
}

func parseTimes(word string) (m MicroBatch, err error) {
	parts := strings.Split(strings.TrimPrefix(word, timesPrefix), "/")
	into := []*float64{&m.Forward, &m.Recompute, &m.Backward}
	if len(parts) != len(into) {
		return m, fmt.Errorf("%s; want three numbers of microseconds, as in times=4.5/1.5/7", word)
	}
	for i, part := range parts {
		if *into[i], err = strconv.ParseFloat(part, 64); err != nil || !(*into[i] >= 0) || math.IsInf(*into[i], 0) {
			return m, fmt.Errorf("%s: %q is no number of microseconds", word, part)
		}
	}
	return m, nil
}
