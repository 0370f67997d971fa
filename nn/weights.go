package nn

import (
	"fmt"
	"slices"
	"strings"

	"penstock.example/safetensors"
	"penstock.example/torch"
)

// WeightsReport is the result of loading weights.
type WeightsReport struct {
	Total     int      // parameters and buffers of the model
	Loaded    int      // of these, those that the file has values for
	Converted int      // of these, those of another element type in the file
	Missing   []string // what the file lacks, and may: num_batches_tracked, and with Partial others
	Skipped   []string // what a Skip has left out, of the model or of the file
	Unused    []string // with Partial, what the model lacks, by its name in the file
	Unmatched []string // rules, as OLD=NEW or what to skip, that are about no name: perhaps slips
}

// String is one line.
func (r WeightsReport) String() string {
	text := fmt.Sprintf("loaded %d of %d", r.Loaded, r.Total)
	if r.Converted > 0 {
		text += fmt.Sprintf(", %d of them converted", r.Converted)
	}
	for _, part := range []struct {
		what  string
		names []string
	}{{"skipped", r.Skipped}, {"not in the file", r.Missing}, {"not in the model",
		r.Unused}, {"rules that match no name", r.Unmatched}} {
		if len(part.names) > 0 {
			text += fmt.Sprintf("; %s: %s", part.what, some(part.names))
		}
	}
	return text
}

// some lists the first few of many.
func some(names []string) string {
	const few = 4
	if len(names) <= few+1 {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
}

// WeightsError is a file that does not fit a model.
type WeightsError struct {
	Path string
	// Problems has one for each kind of mistake, with the first few tensors that have it.
	Problems []string
}

func (e *WeightsError) Error() string {
	return fmt.Sprintf("nn: %s is not of this model:\n  * %s", e.Path, strings.Join(e.Problems, "\n  * "))
}

// problems lists the mistakes. A mistake in many names is one problem.
func (w *weightsMatch) problems() (all []string) {
	report := func(list []string, what, remedy string) {
		if len(list) > 0 {
			all = append(all, fmt.Sprintf("%d %s: %s; %s", len(list), what, some(list), remedy))
		}
	}
	if before := commonPrefix(w.missing, w.unused); before != "" {
		return []string{fmt.Sprintf("names in the file have %q before them, as %q, and in the model %q; rename %s=", before,
			join(before, w.missing[0]), w.missing[0], before)}
	}
	if before := commonPrefix(w.unused, w.missing); before != "" {
		return []string{fmt.Sprintf("names in the model have %q before them, as %q, and in the file %q; rename =%s", before,
			join(before, w.unused[0]), w.unused[0], before)}
	}
	report(w.twice, "names twice", "rename them apart, or neither")
	report(w.shapes, "of another shape", "skip them, or make the model of these sizes")
	report(w.types, "of a type that cannot be converted", "skip them")
	report(w.missing, "not in the file", "rename what stands for them there, skip them, or load in part")
	report(w.unused, "not in the model", "rename or skip them, or load in part")
	return all
}

// CheckWeights compares a file with a model, which need not exist, and says what LoadWeights would
// do. The error is a *WeightsError where the file is not of this model, or one of reading it.
func CheckWeights(path string, m Module, o WeightsConfig) (WeightsReport, error) {
	file, w, err := openWeights(path, m, o)
	if err != nil {
		return WeightsReport{}, err
	}
	file.Close() // it was only read
	return w.report, nil
}

func openWeights(path string, m Module, o WeightsConfig) (*safetensors.File, *weightsMatch, error) {
	file, err := safetensors.Open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("nn: loading a model: %w", err)
	}
	w := matchWeights(file.Tensors(), m, o)
	problems := w.problems()
	if len(problems) == 0 && w.report.Loaded == 0 {
		problems = []string{fmt.Sprintf("none of its %d tensors is one of the model's %d",
			len(file.Tensors()), w.report.Total)}
	}
	if len(problems) > 0 {
		if idle := w.report.Unmatched; len(idle) > 0 {
			problems = append(problems, fmt.Sprintf("%d rules that match no name: %s; want them left out, or names that are there", len(idle), some(idle)))
		}
		file.Close() // it was only read
		return nil, nil, &WeightsError{path, problems}
	}
	return file, w, nil
}

// LoadWeights gives the parameters and buffers of m the values that a safetensors file has for them,
// such as one that Save wrote or a PyTorch state_dict saved as such, and says what it has done.
// Floating-point numbers of another type are converted. A num_batches_tracked that the file lacks
// keeps its value, and a tied parameter may be there under each of its names.
//
// Parameters that exist stay on their devices, also where a pipe has placed them. The others are made
// on the context's device and belong to the model; those without a value in the file stay without.
// Names, shapes and types are checked before anything changes, and the error is a *WeightsError where
// the file is not of this model. After any other error the model has some of the values.
func LoadWeights(c *torch.Ctx, path string, m Module, o WeightsConfig) (WeightsReport, error) {
	file, w, err := openWeights(path, m, o)
	if err != nil {
		return WeightsReport{}, err
	}
	defer file.Close()
	for _, p := range State(m) {
		if w.from[p.Name] == "" || o.Existing && !p.Exists() {
			continue
		}
		data, err := w.read(file, p)
		switch {
		case err != nil:
		case p.Exists():
			err = torch.SetBytes(p.value(), data)
		default:
			err = torch.Try(func() { p.SetTensor(c.Keep(torch.FromBytes(c, data, p.DType(), p.Shape()))) })
		}
		if err != nil {
			return WeightsReport{}, fmt.Errorf("nn: loading %q from %s: %w", p.Name, path, err)
		}
	}
	return w.report, nil
}

// read reads a parameter's value and converts it.
func (w *weightsMatch) read(file *safetensors.File, p NamedParam) ([]byte, error) {
	t, err := file.Read(w.from[p.Name])
	if wanted := torch.FileDType(p.DType()); err == nil && t.DType != wanted {
		t, err = safetensors.Convert(t, wanted)
	}
	return t.Data, err
}

// WeightsConfig matches the tensors of a file with a model's. The zero value takes all names as they
// are.
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
	report WeightsReport

	shapes, missing, unused, twice, types []string // what does not fit
	skip                                  []string
}

// matchWeights compares a file with a model. It reads no data.
func matchWeights(tensors []safetensors.Tensor, m Module, o WeightsConfig) *weightsMatch {
	w := &weightsMatch{from: map[string]string{}, skip: o.Skip}
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
		case !ok && (o.Partial || strings.HasSuffix(p.Name,
			"num_batches_tracked")): // which files of old have not
			w.report.Missing = append(w.report.Missing, p.Name)
		case !ok:
			w.missing = append(w.missing, p.Name)
		case !slices.Equal(t.Shape, p.Shape()):
			w.shapes = append(w.shapes, fmt.Sprintf("%q is %v in the file and %v in the model", p.Name,
				t.Shape, p.Shape()))
		case !convertible(t.DType, p.DType()):
			w.types = append(w.types, fmt.Sprintf("%q is %s in the file and %s in the model", p.Name,
				t.DType, torch.FileDType(p.DType())))
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

// unmatched are the rules of Rename and Skip that match no name.
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

// tied finds other names of tied parameters in a file: the file has the value again, or under such a name
// alone.
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
		if _, both := there[name]; !both {
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
	return from == wanted || slices.Contains(floats, from) &&
		(wanted == safetensors.F32 || wanted == safetensors.F64)
}

// commonPrefix finds what at least half of the names that are missing have before them in unused, as
// "module." before "conv1.weight"; "" is none.
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

// Save writes the parameters and buffers of m, which must all exist, to a safetensors file under
// their names. The file does not depend on how the model is cut: it fits any cut, and the model
// without a pipe. A file at path is replaced when everything is written.
func Save(path string, m Module) error {
	var tensors []safetensors.Tensor
	for _, p := range State(m) {
		if !p.Exists() {
			return fmt.Errorf("nn: saving a model: %q does not exist yet; call nn.Materialise or pipe.New first", p.Name)
		}
		tensors = append(tensors, p.FileTensor())
	}
	return safetensors.WriteFile(path, tensors, safetensors.PyTorch)
}

// FileTensor is the parameter, which must exist, as it is to be written to a file.
func (p NamedParam) FileTensor() safetensors.Tensor { return torch.FileTensor(p.Name, p.value()) }

// Load is LoadWeights with all names as they are.
func Load(c *torch.Ctx, path string, m Module) error {
	_, err := LoadWeights(c, path, m, WeightsConfig{})
	return err
}

// value is the parameter's own, not a replica.
func (p NamedParam) value() *torch.Tensor {
	p.Tensor() // panics where there is none
	return p.Owner().value
}
