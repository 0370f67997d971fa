package nn

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"penstock.example/safetensors"
	"penstock.example/torch"
)

// LoRA configures AddLoRA (Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models").
type LoRA struct {
	Rank    int64
	Alpha   float64 // the adapter's output is scaled by Alpha / Rank
	Dropout float64 // of the adapter's input in training
	// Layers has patterns of the full names of linear layers, in which * stands for any text.
	Layers []string
}

type adapter struct {
	a, b           *Param // [rank, in] and [out, rank]
	scale, dropout float64
}

// addTo adds scale B A dropout(x) to y, the output of the linear layer for x, in place.
func (a *adapter) addTo(c *Ctx, x, y *torch.Tensor) {
	if c.Training {
		x = c.Dropout(x, a.dropout)
	}
	c.Add_(y, c.Linear(c.Linear(x, a.a.Tensor(), nil), a.b.Tensor(), nil), a.scale)
}

// AddLoRA freezes m and gives linear layers adapters, which are then all that is trained. An
// adapter has lora_A.weight [Rank, in], which starts uniform within 1/sqrt(in), and lora_B.weight
// [out, Rank], which starts at zero. So m computes the same until the first update. A layer whose
// weight another module shares, such as a tied head, gets none: they could not be merged. Call
// AddLoRA before the parameters are materialised and before a pipe is made of m. If a pattern
// matches no linear layer, it returns an error and changes nothing.
func AddLoRA(m Module, o LoRA) error {
	if o.Rank < 1 || !(o.Dropout >= 0 && o.Dropout < 1) || len(o.Layers) == 0 {
		return fmt.Errorf("nn: AddLoRA: %+v; want a Rank of at least 1, a Dropout below 1, and Layers", o)
	}
	var names []string
	matched := make([]bool, len(o.Layers))
	chosen := map[string]*Linear{}
	linears(m, "", func(name string, l *Linear) {
		if l.Weight.Shared() {
			return
		}
		names = append(names, strconv.Quote(name))
		for i, pattern := range o.Layers {
			if Match(pattern, name) {
				matched[i], chosen[name] = true, l
			}
		}
	})
	if i := slices.Index(matched, false); i >= 0 {
		return fmt.Errorf("nn: AddLoRA: no linear layer with a weight of its own is named %q; there are %s",
			o.Layers[i], firstFew(names))
	}
	Freeze(m)
	for _, l := range chosen {
		out, in := l.Weight.shape[0], l.Weight.shape[1]
		if l.transposed {
			out, in = in, out
		}
		l.adapter = &adapter{l.Param("lora_A.weight", FanIn(in), o.Rank, in),
			l.Param("lora_B.weight", Zeros, out, o.Rank), o.Alpha / float64(o.Rank), o.Dropout}
	}
	return nil
}

// linears visits the linear layers of m with their full names, in the order of declaration.
func linears(m Module, name string, visit func(name string, l *Linear)) {
	if t, ok := m.(*tuple); ok {
		m = t.Module
	}
	if l, ok := m.(interface{ linear() *Linear }); ok {
		visit(name, l.linear())
	}
	for _, child := range m.node().children {
		linears(child.m, join(name, child.name), visit)
	}
}

// Adapters lists the parameters of m's adapters under the names that the PEFT library gives them in
// files, for Save and LoadWeights.
func Adapters(m Module) Module {
	list := &Base{}
	linears(m, "", func(name string, l *Linear) {
		if a := l.adapter; a != nil {
			list.params = append(list.params, named{peftPrefix + loraName(name, "A"), a.a},
				named{peftPrefix + loraName(name, "B"), a.b})
		}
	})
	return list
}

const peftPrefix = "base_model.model."

// isAdapter reports whether a name is that of an adapter's parameter in a model, not in a file.
func isAdapter(name string) bool {
	return strings.Contains(name, ".lora_") && !strings.HasPrefix(name, peftPrefix)
}

func loraName(layer, which string) string { return layer + ".lora_" + which + ".weight" }

// MergeLoRA takes tensors of m, with their names in m, and returns them without the adapters'.
// Each adapter is added to the weight of its layer: W + Alpha/Rank B A. A sum is computed when its
// tensor is loaded.
func MergeLoRA(m Module, tensors []safetensors.Tensor) []safetensors.Tensor {
	merged := map[string]safetensors.Tensor{}
	for _, t := range tensors {
		merged[t.Name] = t
	}
	linears(m, "", func(name string, l *Linear) {
		if l.adapter == nil {
			return
		}
		w, a, b := merged[name+".weight"], merged[loraName(name, "A")], merged[loraName(name, "B")]
		delete(merged, a.Name)
		delete(merged, b.Name)
		sum := w
		sum.Data, sum.Load = nil, func(write func(piece []byte) error) error {
			c := torch.NewCtx(torch.Options{})
			defer c.Close()
			var data []byte
			err := torch.Try(func() {
				product := c.Matmul(loadFloat32(c, b), loadFloat32(c, a))
				if l.transposed {
					product = c.Transpose(product, 0, 1)
				}
				data = torch.Bytes(c.Add_(loadFloat32(c, w), product, l.adapter.scale))
			})
			if err != nil {
				return err
			}
			return write(data)
		}
		merged[w.Name] = sum
	})
	var list []safetensors.Tensor
	for _, t := range tensors {
		if t, ok := merged[t.Name]; ok {
			list = append(list, t)
		}
	}
	return list
}

// loadFloat32 loads a tensor of a file, which must be float32. It panics with a *torch.Error if the
// file cannot be read.
func loadFloat32(c *torch.Ctx, t safetensors.Tensor) *torch.Tensor {
	data := t.Data
	if t.Load != nil {
		err := t.Load(func(piece []byte) error { data = append(data, piece...); return nil })
		if err != nil {
			panic(&torch.Error{Op: "load", Args: []string{t.Name}, Message: err.Error()})
		}
	}
	return torch.FromBytes(c, data, torch.Float32, t.Shape)
}
