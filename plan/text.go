package plan

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"penstock.example/remat"
	"penstock.example/schedule"
)

// String is the plan's text form, which [Parse] reads: a line for each device, a block for each
// stage, then the program. Micro-batches with the same operations share a line. Predictions of 0
// are left out.
//
//	device cpu:0
//	device cpu:1 limit=900 base=400 peak=880 time=52.5 once=50 bound=52.5
//	stage 0 device=cpu:0 layers=2 policy=except_last
//	  0 S0 L B0
//	  1-3 K0 L S0 B0
//	stage 1 device=cpu:1 layers=3 policy=optimal units=1,2
//	  0-3 times=4.5/1.5/7 S0 K1 L S1 B1 B0
//	program whole stages=2 micro-batches=4
//	worker 0: ...
//
// Times are microseconds of a forward, a recomputation and a backward. A name that is no plain word
// is quoted, with \x20 for a blank.
func (p *Plan) String() string {
	var b strings.Builder
	for _, d := range p.Devices {
		fmt.Fprintf(&b, "device %s", nameWord(d.Name))
		write(&b, d.fields())
		b.WriteByte('\n')
	}
	for i, s := range p.Stages {
		name := strconv.Itoa(s.Device)
		if s.Device >= 0 && s.Device < len(p.Devices) {
			name = nameWord(p.Devices[s.Device].Name)
		}
		fmt.Fprintf(&b, "stage %d device=%s layers=%d policy=%s", i, name, s.Layers, s.Policy)
		if s.Units != nil {
			fmt.Fprintf(&b, " units=%s",
				strings.ReplaceAll(strings.Trim(fmt.Sprint(s.Units), "[]"), " ", ","))
		}
		if s.Prologue > 0 {
			fmt.Fprintf(&b, " prologue=%d", s.Prologue)
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

// nameWord is a name as one word.
func nameWord(name string) string {
	if plain := strconv.QuoteToASCII(name); plain != `"`+name+`"` || len(strings.Fields(name)) != 1 {
		return strings.ReplaceAll(plain, " ", `\x20`)
	}
	return name
}

// parseName reads what nameWord writes.
func parseName(word string) (string, error) {
	if !strings.HasPrefix(word, `"`) {
		return word, nil
	}
	name, err := strconv.Unquote(word)
	if err != nil {
		return "", fmt.Errorf("the name %s; want a word, or one in quotes as in \"device\\x200\"", word)
	}
	return name, nil
}

// write writes numbers that are not 0.
func write(b *strings.Builder, fields []field) {
	for _, f := range fields {
		if word := f.format(); word != "0" {
			fmt.Fprintf(b, " %s=%s", f.name, word)
		}
	}
}

// timesPrefix begins the word for the times of a forward, a recomputation and a backward.
const timesPrefix = "times="

func (m MicroBatch) equal(o MicroBatch) bool {
	return slices.Equal(m.Ops, o.Ops) && m.Forward == o.Forward && m.Recompute == o.Recompute &&
		m.Backward == o.Backward
}

func number(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }

// field is a number of a device in the text form.
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
		if *f.in, err = strconv.ParseInt(word, 10, 64); err == nil && (*f.in < 0 || *f.in > remat.MaxBytes) {
			err = errors.New("no number of bytes")
		}
		return err
	}
	if *f.time, err = strconv.ParseFloat(word, 64); err == nil &&
		!(*f.time >= 0 && *f.time <= math.MaxFloat64) {
		err = errors.New("no number of microseconds")
	}
	return err
}

// fields lists the numbers of a device. They may be left out.
func (d *DevicePlan) fields() []field {
	return []field{
		{name: "limit", in: &d.Limit}, {name: "base", in: &d.Base}, {name: "peak", in: &d.Peak},
		{name: "time", time: &d.Time}, {name: "once", time: &d.Once}, {name: "bound", time: new(float64)},
		{name: "spread", time: &d.Spread},
	}
}

// set reads a word into one of the fields, or returns an error that lists them.
func set(fields []field, word string) error {
	name, value, _ := strings.Cut(word, "=")
	i := slices.IndexFunc(fields, func(f field) bool { return f.name == name })
	if i < 0 {
		var names []string
		for _, f := range fields {
			names = append(names, f.name)
		}
		return fmt.Errorf("%q; want %s, each with =", word, strings.Join(names, ", "))
	}
	if err := fields[i].parse(value); err != nil {
		return fmt.Errorf("%s: %w", word, err)
	}
	return nil
}

// once returns an error for a word with a name that was there before.
func once(seen map[string]bool, word string) (name, value string, err error) {
	name, value, _ = strings.Cut(word, "=")
	if seen[name] {
		err = fmt.Errorf("%s is given twice", name)
	}
	seen[name] = true
	return name, value, err
}

// Parse reads the text that [Plan.String] writes, and checks the plan.
func Parse(text string) (*Plan, error) {
	p := &Plan{}
	lines := strings.Split(text, "\n")
	for at, line := range lines {
		if strings.HasPrefix(line, "program ") {
			var err error
			if p.Program, err = schedule.Parse(strings.Join(lines[at:], "\n")); err != nil {
				return nil, fmt.Errorf("plan: from line %d on: %w", at+1, err)
			}
			return p, p.Check()
		}
		if err := p.parseLine(line); err != nil {
			return nil, fmt.Errorf("plan: line %d: %w", at+1, err)
		}
	}
	return nil, fmt.Errorf("plan: line %d: the text ends without a program", len(lines))
}

func (p *Plan) parseLine(line string) error {
	words := strings.Fields(line)
	switch {
	case len(words) == 0:
		return nil
	case words[0] == "device":
		return p.parseDevice(words[1:])
	case words[0] == "stage":
		return p.parseStage(words[1:])
	case len(p.Stages) == 0:
		return fmt.Errorf("%q; want a line that begins with stage 0", line)
	}
	return p.Stages[len(p.Stages)-1].parseOps(words)
}

func (p *Plan) parseStage(words []string) error {
	if len(words) == 0 || words[0] != strconv.Itoa(len(p.Stages)) {
		return fmt.Errorf("stage %s; want stage %d next",
			strings.Join(words[:min(1, len(words))], ""), len(p.Stages))
	}
	s := StagePlan{Device: -1}
	seen := map[string]bool{}
	for _, word := range words[1:] {
		name, value, err := once(seen, word)
		if err != nil {
			return err
		}
		switch name {
		case "device":
			if value, err = parseName(value); err != nil {
				return err
			}
			if s.Device = slices.IndexFunc(p.Devices,
				func(d DevicePlan) bool { return d.Name == value }); s.Device < 0 {
				return fmt.Errorf("%s: no line before is of this device", word)
			}
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
			return fmt.Errorf("%q; want device, layers, policy, units, prologue, each with =", word)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", word, err)
		}
	}
	if s.Device < 0 {
		return fmt.Errorf("stage %d has no device; want device= and the name of one", len(p.Stages))
	}
	p.Stages = append(p.Stages, s)
	return nil
}

func (p *Plan) parseDevice(words []string) error {
	if len(words) == 0 {
		return errors.New("a device without a name")
	}
	name, err := parseName(words[0])
	if err != nil {
		return err
	}
	d := DevicePlan{Name: name}
	seen := map[string]bool{}
	for _, word := range words[1:] {
		if _, _, err := once(seen, word); err != nil {
			return err
		}
		if err := set(d.fields(), word); err != nil {
			return err
		}
	}
	p.Devices = append(p.Devices, d)
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
		return fmt.Errorf("micro-batches %q; want those from %d on, as 0 or 0-3", words[0],
			len(s.MicroBatches))
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
		if *into[i], err = strconv.ParseFloat(part, 64); err != nil || !(*into[i] >= 0) ||
			math.IsInf(*into[i], 0) {
			return m, fmt.Errorf("%s: %q is no number of microseconds", word, part)
		}
	}
	return m, nil
}
