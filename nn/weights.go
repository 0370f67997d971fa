package nn

import (
	"bytes"
	"fmt"
	"strings"

	"penstock.example/safetensors"
	"penstock.example/torch"
)

// WeightsReport says what was loaded.
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
	}{{"skipped", r.Skipped}, {"not in the file", r.Missing}, {"not in the model", r.Unused}, {"rules that match no name", r.Unmatched}} {
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

// WeightsError says why a file's tensors are not those of a model.
type WeightsError struct {
	Path string
	// Problems has one for each kind of mistake, with the first few tensors that have it.
	Problems []string
}

func (e *WeightsError) Error() string {
	return fmt.Sprintf("nn: %s is not of this model:\n  * %s", e.Path, strings.Join(e.Problems, "\n  * "))
}

// problems is what does not fit, a mistake that many names have in common once.
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
	quoted := func(names []string) (out []string) {
		for _, n := range names {
			out = append(out, fmt.Sprintf("%q", n))
		}
		return out
	}
	report(quoted(w.missing), "not in the file", "rename what stands for them there, skip them, or load in part")
	report(quoted(w.unused), "not in the model", "rename or skip them, or load in part")
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
		problems = []string{fmt.Sprintf("none of its %d tensors is one of the model's %d", len(file.Tensors()), w.report.Total)}
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
// Everything is read and converted before anything changes: after an error the model is as it was,
// unless the file changed meanwhile. Where parameters exist the file is read twice. The error is a *WeightsError where the
// file is not of this model.
func LoadWeights(c *torch.Ctx, path string, m Module, o WeightsConfig) (WeightsReport, error) {
	file, w, err := openWeights(path, m, o)
	if err != nil {
		return WeightsReport{}, err
	}
	defer file.Close()
	var made, there []NamedParam
	undo := func(p NamedParam, err error) (WeightsReport, error) {
		for _, p := range made {
			p.Param.Free()
		}
		return WeightsReport{}, fmt.Errorf("nn: loading %q from %s: %w", p.Name, path, err)
	}
	for _, p := range State(m) {
		if w.from[p.Name] == "" || o.Existing && !p.Exists() {
			continue
		}
		data, err := w.read(file, p)
		if err == nil {
			err = w.same(file, p)
		}
		if err == nil && !p.Exists() {
			err = torch.Try(func() { p.SetTensor(c.Keep(torch.FromBytes(c, data, p.DType(), p.Shape()))) })
			if err == nil {
				made = append(made, p)
			}
		} else {
			there = append(there, p)
		}
		if err != nil {
			return undo(p, err)
		}
	}
	for _, p := range there {
		data, err := w.read(file, p)
		if err == nil {
			err = torch.SetBytes(p.value(), data)
		}
		if err != nil {
			return undo(p, err)
		}
	}
	return w.report, nil
}

// same refuses a tied parameter that the file has two values for.
func (w *weightsMatch) same(file *safetensors.File, p NamedParam) error {
	for other, name := range w.ties {
		if name != p.Name {
			continue
		}
		a, err := file.Read(w.from[name])
		if err != nil {
			return err
		}
		b, err := file.Read(other)
		if err != nil {
			return err
		}
		if a.DType != b.DType || !bytes.Equal(a.Data, b.Data) {
			return fmt.Errorf("%q has other values in the file, and is the same parameter in the model; skip one of the two", other)
		}
	}
	return nil
}

// read reads a parameter's value and converts it.
func (w *weightsMatch) read(file *safetensors.File, p NamedParam) ([]byte, error) {
	t, err := file.Read(w.from[p.Name])
	if wanted := torch.FileDType(p.DType()); err == nil && t.DType != wanted {
		t, err = safetensors.Convert(t, wanted)
	}
	return t.Data, err
}
