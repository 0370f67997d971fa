package nn

import (
	"fmt"
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

// adapter adds scale B A dropout(x) to the output of a linear layer for x.
type adapter struct {
	a, b           *Param // [rank, in] and [out, rank]
	scale, dropout float64
}

// adapted is embedded by layers that can have an adapter.
type adapted struct{ adapter *adapter }

func (l *adapted) adaptedBy() *adapted { return l }

// adapt adds the adapter's output, if there is one, to the layer's output y in place.
func (l *adapted) adapt(c *Ctx, x, y *torch.Tensor) *torch.Tensor {
	if a := l.adapter; a != nil {
		mark := c.Mark()
		if c.Training && a.dropout > 0 {
			x = c.Dropout(x, a.dropout)
		}
		c.Add_(y, c.Linear(c.Linear(x, a.a.Tensor(), nil), a.b.Tensor(), nil), a.scale)
		c.Release(mark)
	}
	return y
}

// AddLoRA freezes m and gives linear layers adapters, which alone are trained: lora_A.weight [Rank,
// in], uniform as PyTorch's linear layers start, and lora_B.weight [out, Rank], zero, so that m
// computes the same until the first update. Call it before the parameters are materialised, and
// before a pipe is made of m. If a pattern matches no linear layer, it returns an error and changes
// nothing.
func AddLoRA(m Module, o LoRA) error {
	if o.Rank < 1 || !(o.Dropout >= 0 && o.Dropout < 1) || len(o.Layers) == 0 {
		return fmt.Errorf("nn: AddLoRA: %+v; want a Rank of at least 1, a Dropout below 1, and Layers", o)
	}
	var names []string
	matched := make([]bool, len(o.Layers))
	chosen := map[string]linearLayer{}
	linears(m, "", func(name string, l linearLayer) {
		names = append(names, strconv.Quote(name))
		for i, pattern := range o.Layers {
			if Match(pattern, name) {
				matched[i], chosen[name] = true, l
			}
		}
	})
	for i, pattern := range o.Layers {
		if !matched[i] {
			return fmt.Errorf("nn: AddLoRA: no linear layer is named %q; there are %s", pattern,
				firstFew(names))
		}
	}
	Freeze(m)
	for _, l := range chosen {
		in, out := l.sizes()
		l.adaptedBy().adapter = &adapter{l.node().Param("lora_A.weight", FanIn(in), o.Rank, in),
			l.node().Param("lora_B.weight", Zeros, out, o.Rank), o.Alpha / float64(o.Rank), o.Dropout}
	}
	return nil
}

// linearLayer is a layer that can have an adapter.
type linearLayer interface {
	Module
	sizes() (in, out int64)
	adaptedBy() *adapted
}

// linears visits the linear layers of m with their full names, in the order of declaration.
func linears(m Module, name string, visit func(name string, l linearLayer)) {
	if t, ok := m.(*tuple); ok {
		m = t.Module
	}
	if l, ok := m.(linearLayer); ok {
		visit(name, l)
	}
	for _, child := range m.node().children {
		linears(child.m, join(name, child.name), visit)
	}
}

// Adapters lists the parameters of m's adapters under the names that the PEFT library gives them in
// files, for Save and LoadWeights.
func Adapters(m Module) Module {
	list := &Base{}
	linears(m, "", func(name string, l linearLayer) {
		if a := l.adaptedBy().adapter; a != nil {
			list.params = append(list.params, named{peftName(name, "A"), a.a},
				named{peftName(name, "B"), a.b})
		}
	})
	return list
}

const peftPrefix = "base_model.model."

func peftName(layer, which string) string { return peftPrefix + loraName(layer, which) }

// isAdapter reports whether a parameter in a model is an adapter's.
func isAdapter(name string) bool {
	return strings.Contains(name, ".lora_") && !strings.HasPrefix(name, peftPrefix)
}

func loraName(layer, which string) string { return layer + ".lora_" + which + ".weight" }

// MergeLoRA returns the tensors of m, given under their names, with each adapter added to the weight
// of its layer: W + Alpha/Rank B A. The sums are computed as the tensors are loaded, one at a time.
func MergeLoRA(m Module, tensors []safetensors.Tensor) []safetensors.Tensor {
	rest := map[string]safetensors.Tensor{}
	for _, t := range tensors {
		rest[t.Name] = t
	}
	linears(m, "", func(name string, l linearLayer) {
		if l.adaptedBy().adapter == nil {
			return
		}
		a, b := rest[loraName(name, "A")], rest[loraName(name, "B")]
		delete(rest, a.Name)
		delete(rest, b.Name)
		w, adapter := rest[name+".weight"], l.adaptedBy().adapter
		_, transposed := l.(*linearTransposed)
		sum := w
		sum.Data, sum.Load = nil, func(write func(piece []byte) error) error {
			c := torch.NewCtx(torch.Options{})
			defer c.Close()
			var data []byte
			err := torch.Try(func() {
				product := c.Matmul(loaded(c, b), loaded(c, a))
				if transposed {
					product = c.Transpose(product, 0, 1)
				}
				data = torch.Bytes(c.Add_(loaded(c, w), product, adapter.scale))
			})
			if err != nil {
				return err
			}
			return write(data)
		}
		rest[w.Name] = sum
	})
	var merged []safetensors.Tensor
	for _, t := range tensors {
		if t, there := rest[t.Name]; there {
			merged = append(merged, t)
		}
	}
	return merged
}

// loaded is a tensor of float32 of a file. It panics with a *torch.Error if it cannot be read.
func loaded(c *torch.Ctx, t safetensors.Tensor) *torch.Tensor {
	data := t.Data
	if t.Load != nil {
		err := t.Load(func(piece []byte) error { data = append(data, piece...); return nil })
		if err != nil {
			panic(&torch.Error{Op: "load", Args: []string{t.Name}, Message: err.Error()})
		}
	}
	return torch.FromBytes(c, data, torch.Float32, t.Shape)
}
