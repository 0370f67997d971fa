package nn

import (
	"fmt"
	"slices"
	"strings"

	"penstock.example/safetensors"
	"penstock.example/torch"
)

// WeightsConfig says how the tensors of a file are those of a model. The zero value takes their
// names as they are, and wants all.
type WeightsConfig struct {
	// Rename changes the names in the file, one rule after the other.
	Rename []Rename
	// Skip leaves out what has one of these names, in the model or, after Rename, in the file: the
	// parameters keep their values, or start from those of a new model. A * stands for any text.
	Skip []string
	// Partial leaves out what only the file has, or only the model.
	Partial bool
	// Existing leaves out parameters that do not exist, for a model that several processes share. The
	// file must have them all the same.
	Existing bool
}

// Rename replaces parts of names: Old, a part or several with dots between, by New wherever it
// stands in a name. With an empty New it is taken away, with an empty Old New is put in front.
type Rename struct{ Old, New string }

// ParseRename reads OLD=NEW.
func ParseRename(text string) (Rename, error) {
	from, to, ok := strings.Cut(text, "=")
	r := Rename{from, to}
	for _, side := range []string{from, to} {
		if strings.HasPrefix(side, ".") || strings.HasSuffix(side, ".") || strings.Contains(side, "..") {
			ok = false
		}
	}
	if !ok || from == "" && to == "" || strings.Contains(to, "=") {
		return Rename{}, fmt.Errorf("nn: %q is no rule for names; want OLD=NEW, parts of names with dots between them", text)
	}
	return r, nil
}

func (r Rename) String() string { return r.Old + "=" + r.New }

// apply renames one name, and reports whether the rule is about it.
func (r Rename) apply(name string) (renamed string, about bool) {
	if r.Old == "" {
		return join(r.New, name), true
	}
	parts, old := strings.Split(name, "."), strings.Split(r.Old, ".")
	var out []string
	for len(parts) > 0 {
		if len(parts) < len(old) || !slices.Equal(parts[:len(old)], old) {
			out, parts = append(out, parts[0]), parts[1:]
			continue
		}
		if r.New != "" {
			out = append(out, r.New)
		}
		parts, about = parts[len(old):], true
	}
	return strings.Join(out, "."), about
}

// Match reports whether a parameter's name is a pattern's, in which * stands for any text: "fc.*", "*.bias".
func Match(pattern, name string) bool {
	texts := strings.Split(pattern, "*")
	if len(texts) == 1 {
		return pattern == name
	}
	first, last := texts[0], texts[len(texts)-1]
	if !strings.HasPrefix(name, first) || !strings.HasSuffix(name[len(first):], last) {
		return false
	}
	name = name[len(first) : len(name)-len(last)]
	for _, text := range texts[1 : len(texts)-1] {
		i := strings.Index(name, text)
		if i < 0 {
			return false
		}
		name = name[i+len(text):]
	}
	return true
}

// weightsMatch is which tensor of a file is for which parameter.
type weightsMatch struct {
	from   map[string]string // names in the file, by those in the model
	ties   map[string]string // other names in the file that a tied parameter has, and the model's first
	report WeightsReport

	shapes, missing, unused, twice, types []string // what does not fit
	skip                                  []string
}

// matchWeights compares a file with a model. It reads no data.
func matchWeights(tensors []safetensors.Tensor, m Module, o WeightsConfig) *weightsMatch {
	w := &weightsMatch{from: map[string]string{}, ties: map[string]string{}, skip: o.Skip}
	there := map[string]safetensors.Tensor{}
	renamed := make([]string, len(tensors))
	matched := make([]bool, len(o.Rename))
	for i, t := range tensors {
		name := t.Name
		for rule, r := range o.Rename {
			var about bool
			name, about = r.apply(name)
			matched[rule] = matched[rule] || about
		}
		renamed[i] = name
		if other, taken := there[name]; taken {
			w.twice = append(w.twice, fmt.Sprintf("%q and %q both become %q", other.Name, t.Name, name))
			continue
		}
		there[name] = t
	}
	names := slices.Clone(renamed)
	for _, p := range State(m) {
		names = append(names, p.Name)
	}
	w.report.Unmatched = unmatched(o, matched, names)
	seen := w.tied(there, m)
	for _, p := range State(m) {
		w.report.Total++
		t, ok := there[p.Name]
		seen[p.Name] = true
		switch {
		case w.skipped(p.Name):
		case !ok && (o.Partial || strings.HasSuffix(p.Name, "num_batches_tracked")): // which files of old have not
			w.report.Missing = append(w.report.Missing, p.Name)
		case !ok:
			w.missing = append(w.missing, p.Name)
		case !slices.Equal(t.Shape, p.Shape()):
			w.shapes = append(w.shapes, fmt.Sprintf("%q is %v in the file and %v in the model", p.Name, t.Shape, p.Shape()))
		case !convertible(t.DType, p.DType()):
			w.types = append(w.types, fmt.Sprintf("%q is %s in the file and %s in the model", p.Name, t.DType, torch.FileDType(p.DType())))
		default:
			w.from[p.Name] = t.Name
			if t.DType != torch.FileDType(p.DType()) {
				w.report.Converted++
			}
		}
	}
	w.report.Loaded = len(w.from)
	for i, t := range tensors {
		switch name := renamed[i]; {
		case seen[name], w.skipped(name):
		case o.Partial:
			w.report.Unused = append(w.report.Unused, t.Name)
		default:
			w.unused = append(w.unused, name)
		}
	}
	return w
}

// unmatched are the rules that are about no name: of Rename those that were not matched, of Skip those
// for none of the names.
func unmatched(o WeightsConfig, matched []bool, names []string) (rules []string) {
	for i, r := range o.Rename {
		if !matched[i] {
			rules = append(rules, r.String())
		}
	}
	for _, pattern := range o.Skip {
		if !slices.ContainsFunc(names, func(name string) bool { return Match(pattern, name) }) {
			rules = append(rules, pattern)
		}
	}
	return rules
}

// tied finds the names in a file that tied parameters have besides their first: the values are there
// once more, or under such a name alone.
func (w *weightsMatch) tied(there map[string]safetensors.Tensor, m Module) (seen map[string]bool) {
	seen = map[string]bool{}
	first := map[*Param]string{}
	for _, p := range Shared(m) {
		name, known := first[p.Owner()]
		if !known {
			first[p.Owner()] = p.Name
			continue
		}
		t, ok := there[p.Name]
		if !ok {
			continue
		}
		seen[p.Name] = true
		if _, both := there[name]; both {
			w.ties[t.Name] = name
		} else {
			there[name] = t
		}
	}
	return seen
}

// skipped reports whether a name is left out, and remembers that.
func (w *weightsMatch) skipped(name string) bool {
	if !slices.ContainsFunc(w.skip, func(p string) bool { return Match(p, name) }) {
		return false
	}
	if !slices.Contains(w.report.Skipped, name) {
		w.report.Skipped = append(w.report.Skipped, name)
	}
	return true
}

// convertible reports whether elements of a file can become a parameter's.
func convertible(from safetensors.DType, to torch.DType) bool {
	wanted := torch.FileDType(to)
	floats := []safetensors.DType{safetensors.F16, safetensors.BF16, safetensors.F32, safetensors.F64}
	return from == wanted || slices.Contains(floats, from) && (wanted == safetensors.F32 || wanted == safetensors.F64)
}

// commonPrefix finds what at least half of the names that are missing have before them in unused, as
// "module." before "conv1.weight"; "" where there is nothing.
func commonPrefix(missing, unused []string) string {
	wanted, count := map[string]bool{}, map[string]int{}
	for _, name := range missing {
		wanted[name] = true
	}
	for _, name := range unused {
		for i := range name {
			if name[i] == '.' && wanted[name[i+1:]] {
				count[name[:i]]++
			}
		}
	}
	best := ""
	for prefix, n := range count {
		if n > count[best] || n == count[best] && prefix < best {
			best = prefix
		}
	}
	if 2*count[best] < len(missing) {
		return ""
	}
	return best
}
