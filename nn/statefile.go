package nn

import (
	"cmp"
	"fmt"
	"strings"

	"penstock/internal/arg"
	"penstock/safetensors"
	"penstock/torch"
)

// Save writes the parameters and buffers of m, which must all exist, to a safetensors file under
// their names. The file does not depend on how the model is cut: it fits any cut, and the model
// without a pipe. A file at path is replaced when everything is written.
func Save(path string, m Module) error {
	if err := arg.Given(m, "nn: Save: the model", "one that exists"); err != nil {
		return err
	}
	var tensors []safetensors.Tensor
	for _, p := range State(m) {
		if !p.Exists() {
			return fmt.Errorf("nn: saving a model: %q does not exist yet; call nn.Materialise or pipe.New first", p.Name)
		}
		tensors = append(tensors, p.FileTensor())
	}
	return safetensors.WriteFile(path, tensors, nil)
}

// FileTensor is the parameter, which must exist, as it is to be written to a file.
func (p NamedParam) FileTensor() safetensors.Tensor { return torch.FileTensor(p.Name, p.value()) }

// Load gives the parameters and buffers of m the values that a safetensors file has under their
// names, such as one that Save wrote or a PyTorch state_dict saved as such. Those that exist stay
// on their devices, also where a pipe has placed them. The others are made on the context's device
// and belong to the model. All names, shapes and element types must be the model's. If not, the
// error lists what differs and nothing has changed.
func Load(c *torch.Ctx, path string, m Module) error {
	if err := cmp.Or(arg.Given(c, "nn: Load: the torch.Ctx", "one of torch.NewCtx"),
		arg.Given(m, "nn: Load: the model", "one of the file's names and shapes")); err != nil {
		return err
	}
	file, err := safetensors.Open(path)
	if err != nil {
		return fmt.Errorf("nn: loading a model: %w", err)
	}
	defer file.Close()
	if err := fits(file, path, State(m)); err != nil {
		return err
	}
	for _, p := range State(m) {
		if err := p.load(c, file); err != nil {
			return fmt.Errorf("nn: loading %q from %s: %w", p.Name, path, err)
		}
	}
	return nil
}

func (p NamedParam) load(c *torch.Ctx, file *safetensors.File) error {
	t, err := file.Read(p.Name)
	switch {
	case err != nil:
		return err
	case p.Exists():
		return torch.SetBytes(p.value(), t.Data)
	}
	return torch.Try(func() { p.SetTensor(c.Keep(torch.FromBytes(c, t.Data, p.DType(), p.Shape()))) })
}

// value is the parameter's own, not a replica.
func (p NamedParam) value() *torch.Tensor {
	p.Tensor() // panics where there is none
	return p.Owner().value
}

// fits compares a file with what is to be read from it.
func fits(file *safetensors.File, path string, state []NamedParam) error {
	there := map[string]string{}
	for _, t := range file.Tensors() {
		there[t.Name] = fmt.Sprintf("%s %v", t.DType, t.Shape)
	}
	var problems []string
	for _, p := range state {
		want := fmt.Sprintf("%s %v", torch.FileDType(p.DType()), p.Shape())
		switch got, ok := there[p.Name]; {
		case !ok:
			problems = append(problems, fmt.Sprintf("%q is not in the file", p.Name))
		case got != want:
			problems = append(problems, fmt.Sprintf("%q is %s in the file and %s in the model", p.Name, got, want))
		}
		delete(there, p.Name)
	}
	for _, t := range file.Tensors() {
		if _, ok := there[t.Name]; ok {
			problems = append(problems, fmt.Sprintf("%q is not in the model", t.Name))
		}
	}
	if len(problems) > 0 {
		return fmt.Errorf("nn: %s is not of this model:\n  * %s", path, strings.Join(problems, "\n  * "))
	}
	return nil
}
