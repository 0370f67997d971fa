package nn

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"penstock.example/internal/disk"
	"penstock.example/safetensors"
	"penstock.example/torch"
)

// WeightsConfig says which tensor of a file belongs to which parameter of a model. With the zero
// value the two have the same name.
type WeightsConfig struct {
	// Rename changes the names in the file, one rule after the other.
	Rename []Rename
	// Skip has patterns of names, in the model or, after Rename, in the file. Their tensors are not
	// loaded. A * stands for any text.
	Skip []string
	// Partial allows tensors that only the file or only the model has.
	Partial bool
	// Existing loads only parameters that are materialised, for a model that several processes
	// share. The file must have the others too.
	Existing bool
	// Unfilled makes Materialise skip the initial values of the parameters that the file has. These
	// parameters must then be loaded.
	Unfilled bool
}

type WeightsReport struct {
	Total     int      // parameters and buffers of the model
	Loaded    int      // parameters and buffers that the file has values for
	Converted int      // loaded tensors that have another element type in the file
	Missing   []string // names in the model only: num_batches_tracked, and with Partial any
	Skipped   []string // names in the model or the file that match Skip
	Unused    []string // with Partial, names in the file only
	Unmatched []string // rules of Rename (OLD=NEW) and Skip that match no name
}

func (r WeightsReport) String() string {
	text := fmt.Sprintf("loaded %d of %d", r.Loaded, r.Total)
	if r.Converted > 0 {
		text += fmt.Sprintf(", %d of them converted", r.Converted)
	}
	part := func(what string, names []string) {
		if len(names) > 0 {
			text += fmt.Sprintf("; %s: %s", what, firstFew(names))
		}
	}
	part("skipped", r.Skipped)
	part("not in the file", r.Missing)
	part("not in the model", r.Unused)
	part("rules that match no name", r.Unmatched)
	return text
}

// firstFew joins the first few of many names.
func firstFew(names []string) string {
	const few = 4
	if len(names) <= few+1 {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
}

// WeightsError says how a file does not fit a model.
type WeightsError struct {
	Path     string
	Problems []string // one for each kind, with the first few tensors
	remedies []string // one for each problem
}

func (e *WeightsError) Error() string {
	text := fmt.Sprintf("nn: %s is not of this model:", e.Path)
	for i, problem := range e.Problems {
		text += "\n  * " + problem + e.remedies[i]
	}
	return text
}

// CheckWeights compares a file with a model, which need not be materialised, and reports what
// LoadWeights would do. The error is a *WeightsError if the file does not fit the model.
func CheckWeights(path string, m Module, o WeightsConfig) (WeightsReport, error) {
	file, w, err := openWeights(path, m, o)
	if err != nil {
		return WeightsReport{}, err
	}
	file.Close() // it was only read
	return w.WeightsReport, nil
}

func openWeights(path string, m Module, o WeightsConfig) (*safetensors.File, *weightsMatch, error) {
	file, err := safetensors.Open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("nn: loading a model: %w", err)
	}
	w := matchWeights(file.Tensors(), m, o)
	if e := w.mismatch(path); len(e.Problems) > 0 {
		file.Close() // it was only read
		return nil, nil, e
	}
	for _, p := range State(m) {
		if o.Unfilled && w.from[p.Name] != "" {
			p.SetInit(func(*torch.Ctx, *torch.Tensor) {})
		}
	}
	return file, w, nil
}

// LoadWeights reads the parameters and buffers of m from a safetensors file, such as Save or
// PyTorch users write, by name. Floating-point numbers of another type are converted. If the file
// lacks a num_batches_tracked or an adapter, the model keeps its values. A tied parameter may be in
// the file under any of its names.
//
// Parameters that exist stay on their devices, as in a pipe. Other parameters with values in the
// file are made on the context's device and belong to the model. If names, shapes or types do not
// fit, the error is a *WeightsError, and nothing has changed. After any other error some values are
// loaded.
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
		t, err := file.Read(w.from[p.Name])
		if wanted := torch.FileDType(p.DType()); err == nil && t.DType != wanted {
			t, err = safetensors.Convert(t, wanted)
		}
		if i := firstNaN(t); err == nil && i >= 0 {
			err = fmt.Errorf("element %d is not a number; want weights of a run that did not diverge, or skip it", i)
		}
		switch {
		case err != nil:
		case p.Exists():
			err = torch.SetBytes(p.value(), t.Data)
		default:
			err = torch.Try(func() { p.SetTensor(c.Keep(torch.FromBytes(c, t.Data, p.DType(), p.Shape()))) })
		}
		if err != nil {
			return WeightsReport{}, fmt.Errorf("nn: loading %q from %s: %w", p.Name, path, err)
		}
	}
	return w.WeightsReport, nil
}

// firstNaN returns the index of the first element that is NaN, or -1.
func firstNaN(t safetensors.Tensor) int {
	infinity := map[safetensors.DType]uint64{safetensors.F64: 0x7ff << 52, safetensors.F32: 0xff << 23,
		safetensors.F16: 0x1f << 10, safetensors.BF16: 0xff << 7}[t.DType]
	width := int(t.DType.Size())
	for at := 0; infinity > 0 && at < len(t.Data); at += width {
		var bits [8]byte
		copy(bits[:], t.Data[at:at+width])
		if sign := uint64(1) << (8*width - 1); binary.LittleEndian.Uint64(bits[:])&^sign > infinity {
			return at / width
		}
	}
	return -1
}

// Rename replaces Old, one or several parts of a dotted name, by New wherever it occurs. An empty
// New removes Old; with an empty Old, New is put in front.
type Rename struct{ Old, New string }

// ParseRename reads OLD=NEW.
func ParseRename(text string) (Rename, error) {
	from, to, ok := strings.Cut(text, "=")
	for _, side := range []string{from, to} {
		ok = ok && (side == "" || !strings.Contains("."+side+".", ".."))
	}
	if !ok || from == "" && to == "" || strings.Contains(to, "=") {
		return Rename{}, fmt.Errorf("nn: %q is no rule for names; want OLD=NEW, where each is empty or "+
			"parts of a name, such as body.0", text)
	}
	return Rename{from, to}, nil
}

func (r Rename) text() string { return r.Old + "=" + r.New }

func (r Rename) apply(name string) (renamed string, matches bool) {
	if r.Old == "" {
		return join(r.New, name), true
	}
	apart := func(s string) string { return "." + strings.ReplaceAll(s, ".", "..") + "." } // a.b is .a..b.
	whole, old, to := apart(name), apart(r.Old), ""
	if r.New != "" {
		to = apart(r.New)
	}
	renamed = strings.Trim(strings.ReplaceAll(whole, old, to), ".")
	return strings.ReplaceAll(renamed, "..", "."), strings.Contains(whole, old)
}

// Match reports whether a name matches a pattern, in which * stands for any text: "fc.*", "*.bias".
func Match(pattern, name string) bool {
	matches, err := filepath.Match(pattern, name)
	return err == nil && matches
}

// weightsMatch says which tensor of a file belongs to which parameter.
type weightsMatch struct {
	WeightsReport
	from map[string]string // names in the file, by names in the model

	twice, shapes, types, missing, unused []string // mismatches
}

// mismatch returns the error of a match. It has no problems if the file fits the model.
func (w *weightsMatch) mismatch(path string) *WeightsError {
	e := &WeightsError{Path: path}
	report := func(list []string, what, remedy string) {
		if len(list) > 0 {
			problem := fmt.Errorf("%d %s: %s", len(list), what, firstFew(list))
			e.Problems = append(e.Problems, disk.Short(problem).Error())
			e.remedies = append(e.remedies, "; "+remedy)
		}
	}
	report(w.twice, "names twice", "rename only one of the two")
	report(w.shapes, "of another shape", "skip them, or make the model of these sizes")
	report(w.types, "of a type that cannot be converted", "skip them")
	report(w.missing, "not in the file", "rename tensors of the file, skip these, or load in part")
	report(w.unused, "not in the model", "rename or skip them, or load in part")
	if len(e.Problems) == 0 && w.Loaded == 0 {
		e.Problems, e.remedies = []string{"the model has none of its tensors"}, []string{""}
	}
	if len(e.Problems) > 0 {
		report(w.Unmatched, "rules that match no name", "leave them out, or correct their names")
	}
	return e
}

func matchWeights(tensors []safetensors.Tensor, m Module, o WeightsConfig) *weightsMatch {
	w := &weightsMatch{from: map[string]string{}}
	file := map[string]safetensors.Tensor{} // by name after Rename
	renamed := make([]string, len(tensors))
	matched := map[string]bool{} // rules that match a name
	for i, t := range tensors {
		name := t.Name
		for _, r := range o.Rename {
			var matches bool
			name, matches = r.apply(name)
			matched[r.text()] = matched[r.text()] || matches
		}
		renamed[i] = name
		if other, taken := file[name]; taken {
			w.twice = append(w.twice, fmt.Sprintf("%q and %q both become %q", other.Name, t.Name, name))
			continue
		}
		file[name] = t
	}
	differs := func(name string, given, wanted any) string {
		return fmt.Sprintf("%q is %v in the file and %v in the model", name, given, wanted)
	}
	modelNames := matchTied(file, m)
	for _, p := range State(m) {
		w.Total++
		t, ok := file[p.Name]
		modelNames[p.Name] = true
		wanted := torch.FileDType(p.DType())
		switch {
		case w.skipped(p.Name, o.Skip, matched):
		case !ok && isAdapter(p.Name):
			w.Total--
		case !ok && (o.Partial || strings.HasSuffix(p.Name, "num_batches_tracked")): // not in old files
			w.Missing = append(w.Missing, p.Name)
		case !ok:
			w.missing = append(w.missing, p.Name)
		case !slices.Equal(t.Shape, p.Shape()):
			w.shapes = append(w.shapes, differs(p.Name, t.Shape, p.Shape()))
		case t.DType != wanted && !convertible(t.DType, wanted):
			w.types = append(w.types, differs(p.Name, t.DType, wanted))
		default:
			w.from[p.Name] = t.Name
			if t.DType != wanted {
				w.Converted++
			}
		}
	}
	w.Loaded = len(w.from)
	for i, t := range tensors {
		switch name := renamed[i]; {
		case w.skipped(name, o.Skip, matched), modelNames[name]:
		case o.Partial:
			w.Unused = append(w.Unused, t.Name)
		default:
			w.unused = append(w.unused, name)
		}
	}
	var rules []string
	for _, r := range o.Rename {
		rules = append(rules, r.text())
	}
	w.Unmatched = slices.DeleteFunc(append(rules, o.Skip...), func(rule string) bool { return matched[rule] })
	return w
}

// matchTied returns the second and later names of m's tied parameters that are in the file. If the
// file lacks a parameter's first name, matchTied adds the tensor to file under it.
func matchTied(file map[string]safetensors.Tensor, m Module) (laterNames map[string]bool) {
	laterNames = map[string]bool{}
	first := map[*Param]string{}
	for _, p := range Shared(m) {
		name, later := first[p.Owner()]
		t, ok := file[p.Name]
		switch {
		case !later:
			first[p.Owner()] = p.Name
		case ok:
			laterNames[p.Name] = true
			if _, both := file[name]; !both {
				file[name] = t
			}
		}
	}
	return laterNames
}

// skipped reports whether a name matches a pattern. It records the name and all patterns that
// match.
func (w *weightsMatch) skipped(name string, patterns []string, matched map[string]bool) (skip bool) {
	for _, pattern := range patterns {
		if Match(pattern, name) {
			matched[pattern], skip = true, true
		}
	}
	if skip && !slices.Contains(w.Skipped, name) {
		w.Skipped = append(w.Skipped, name)
	}
	return skip
}

func convertible(from, to safetensors.DType) bool {
	floats := []safetensors.DType{safetensors.F16, safetensors.BF16, safetensors.F32, safetensors.F64}
	return slices.Contains(floats, from) && slices.Contains(floats[2:], to)
}

// Save writes the parameters and buffers of m, which must all exist, to a safetensors file under
// their names. The file does not depend on how a pipe cuts the model. A file at path is replaced
// when everything is written.
func Save(path string, m Module) error {
	var tensors []safetensors.Tensor
	for _, p := range State(m) {
		if !p.Exists() {
			return fmt.Errorf("nn: saving: %q does not exist yet; call Materialise or pipe.New first", p.Name)
		}
		tensors = append(tensors, p.FileTensor())
	}
	return safetensors.WriteFile(path, tensors, safetensors.PyTorch)
}

// FileTensor returns the parameter, which must exist, for a safetensors file.
func (p NamedParam) FileTensor() safetensors.Tensor { return torch.FileTensor(p.Name, p.value()) }

// value returns the parameter's value, not a replica. It panics if the parameter does not exist.
func (p NamedParam) value() *torch.Tensor {
	p.Tensor()
	return p.Owner().value
}
