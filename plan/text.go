package plan

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"penstock.example/remat"
	"penstock.example/schedule"
)

// String returns the plan as text, which [Parse] reads: a line for each device, a block for each stage,
// then the program. Micro-batches with the same operations share a line. Predictions of 0 are left out.
//
//	device cpu:0
//	device cpu:1 limit=900 base=400 peak=880 time=52.5 once=50
//	stage 0 device=cpu:0 layers=2 policy=except_last
//	  0 S0 L B0
//	  1-3 K0 L S0 B0
//	stage 1 device=cpu:1 layers=3 policy=optimal units=1,2
//	  0-3 times=4.5/1.5/7 S0 K1 L S1 B1 B0
//	program whole stages=2 micro-batches=4
//	worker 0: ...
//
// Times are microseconds of a forward, a recomputation and a backward. Names are escaped as in a URL.
func (p *Plan) String() string {
	var b strings.Builder
	for _, d := range p.Devices {
		fmt.Fprintln(&b, "device "+nameWord(d.Name)+written(d.fields()))
	}
	for i, s := range p.Stages {
		name := strconv.Itoa(s.Device)
		if s.Device >= 0 && s.Device < len(p.Devices) {
			name = p.Devices[s.Device].Name
		}
		fmt.Fprintf(&b, "stage %d%s\n", i, written(s.fields(&name)))
		for from := 0; from < len(s.MicroBatches); {
			m, to := s.MicroBatches[from], from
			for to+1 < len(s.MicroBatches) && m.equal(s.MicroBatches[to+1]) {
				to++
			}
			fmt.Fprintf(&b, "  %d", from)
			if to > from {
				fmt.Fprintf(&b, "-%d", to)
			}
			b.WriteString(written(m.fields()))
			for _, op := range m.Ops {
				b.WriteString(" " + op.String())
			}
			b.WriteByte('\n')
			from = to + 1
		}
	}
	b.WriteString(p.Program.String())
	return b.String()
}

func (m MicroBatch) equal(o MicroBatch) bool {
	return slices.Equal(m.Ops, o.Ops) && m.Forward == o.Forward && m.Recompute == o.Recompute &&
		m.Backward == o.Backward
}

// nameWord is a name as one word, which url.PathUnescape reads.
func nameWord(name string) string { return strings.ReplaceAll(url.PathEscape(name), "%2F", "/") }

// field is a word name=value of the text form, which leaves it out if the value is zero. The three times
// are joined by /, units by commas.
type field struct {
	name string
	in   any // a pointer to the value
}

func (d *DevicePlan) fields() []field {
	return []field{{"limit", &d.Limit}, {"base", &d.Base}, {"peak", &d.Peak}, {"time", &d.Time},
		{"once", &d.Once}, {"bound", new(float64)}, {"spread", &d.Spread}} // bound: of older plans, ignored
}

func (s *StagePlan) fields(device *string) []field {
	return []field{{"device", device}, {"layers", &s.Layers}, {"policy", (*string)(&s.Policy)},
		{"units", &s.Units}, {"prologue", &s.Prologue}}
}

func (m *MicroBatch) fields() []field {
	return []field{{"times", [3]*float64{&m.Forward, &m.Recompute, &m.Backward}}}
}

func number(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }

func written(fields []field) (words string) {
	for _, f := range fields {
		word, zero := "", "0"
		switch in := f.in.(type) {
		case *int64:
			word = strconv.FormatInt(*in, 10)
		case *int:
			word = strconv.Itoa(*in)
		case *float64:
			word = number(*in)
		case *string:
			word, zero = nameWord(*in), ""
		case *[]int:
			word, zero = strings.ReplaceAll(strings.Trim(fmt.Sprint(*in), "[]"), " ", ","), ""
		case [3]*float64:
			word, zero = number(*in[0])+"/"+number(*in[1])+"/"+number(*in[2]), "0/0/0"
		}
		if word != zero {
			words += " " + f.name + "=" + word
		}
	}
	return words
}

func (f field) read(word string) (err error) {
	switch in := f.in.(type) {
	case *int64:
		if *in, err = strconv.ParseInt(word, 10, 64); err == nil && (*in < 0 || *in > remat.MaxBytes) {
			err = errors.New("no number of bytes")
		}
	case *int:
		*in, err = strconv.Atoi(word)
	case *float64:
		if *in, err = strconv.ParseFloat(word, 64); err != nil || !(*in >= 0 && *in <= math.MaxFloat64) {
			err = fmt.Errorf("%q is no number of microseconds", word)
		}
	case *string:
		*in, err = url.PathUnescape(word)
	case *[]int:
		for part := range strings.SplitSeq(word, ",") {
			n, bad := strconv.Atoi(part)
			*in, err = append(*in, n), cmp.Or(err, bad)
		}
	case [3]*float64:
		parts := strings.Split(word, "/")
		if len(parts) != len(in) {
			return errors.New("want three numbers of microseconds, as in times=4.5/1.5/7")
		}
		for i, part := range parts {
			err = cmp.Or(err, field{in: in[i]}.read(part))
		}
	}
	return err
}

func readFields(fields []field, words []string) error {
	seen, names := map[string]bool{}, []string(nil)
	for _, f := range fields {
		names = append(names, f.name)
	}
	for _, word := range words {
		name, value, _ := strings.Cut(word, "=")
		i := slices.Index(names, name)
		switch {
		case i < 0:
			return fmt.Errorf("%q; want %s, each with =", word, strings.Join(names, ", "))
		case seen[name]:
			return fmt.Errorf("%s is given twice", name)
		}
		if err := fields[i].read(value); err != nil {
			return fmt.Errorf("%s: %w", word, err)
		}
		seen[name] = true
	}
	return nil
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
		if err := p.parseLine(strings.Fields(line)); err != nil {
			return nil, fmt.Errorf("plan: line %d: %w", at+1, err)
		}
	}
	return nil, fmt.Errorf("plan: line %d: the text ends without a program", len(lines))
}

func (p *Plan) parseLine(words []string) (err error) {
	switch {
	case len(words) == 0:
		return nil
	case words[0] == "device" && len(words) > 1:
		d := DevicePlan{}
		if d.Name, err = url.PathUnescape(words[1]); err == nil {
			err = readFields(d.fields(), words[2:])
		}
		p.Devices = append(p.Devices, d)
		return err
	case words[0] == "stage" && len(words) > 1 && words[1] == strconv.Itoa(len(p.Stages)):
		s, name := StagePlan{}, ""
		if err := readFields(s.fields(&name), words[2:]); err != nil {
			return err
		}
		if s.Device = slices.IndexFunc(p.Devices,
			func(d DevicePlan) bool { return d.Name == name }); s.Device < 0 {
			return fmt.Errorf("stage %s is on device %q, and no line before is of this device", words[1],
				name)
		}
		p.Stages = append(p.Stages, s)
		return nil
	case len(p.Stages) == 0 || words[0] == "device" || words[0] == "stage":
		return fmt.Errorf("%q; want a device and its name, or stage %d, next", strings.Join(words, " "),
			len(p.Stages))
	}
	return p.Stages[len(p.Stages)-1].parseOps(words)
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
	if words = words[1:]; len(words) > 0 && strings.Contains(words[0], "=") {
		if err := readFields(m.fields(), words[:1]); err != nil {
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
