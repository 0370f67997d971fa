package optim_test

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/optim"
	"penstock.example/safetensors"
	"penstock.example/torch"
)

// save writes the state down as a checkpoint would.
func save(o optim.Optimizer) ([]safetensors.Tensor, map[string]int64) {
	var out []safetensors.Tensor
	for _, s := range o.State() {
		data := torch.Bytes(s.Tensor)
		out = append(out, safetensors.Tensor{Name: s.Name, DType: torch.FileDType(s.Tensor.DType()),
			Shape: s.Tensor.Shape(), Load: func(write func([]byte) error) error { return write(data) }})
	}
	return out, o.Steps()
}

// Whoever stops after any step, and goes on in a new process on other devices, gets the bits of a
// run that never stopped. One parameter's first gradient comes late, another has none at all.
func TestResumedRunIsTheSameToTheBit(t *testing.T) {
	const steps = 4
	without := func(step int) []string {
		if step < 2 {
			return []string{"a.bias", "b.bias"}
		}
		return []string{"a.bias"}
	}
	for _, row := range rules {
		t.Run(row.title, func(t *testing.T) {
			c := torchtest.New(t, torch.Options{})
			model := newModel(t, torch.CPU(0))
			opt := newOptimizer(t, row.name, row.config)
			for step := range steps {
				resumed := newModel(t, torch.CPU(1), torch.CPU(2))
				for i, p := range resumed {
					must.Do(t, torch.SetBytes(p.Tensor(), torch.Bytes(model[i].Tensor())))
				}
				other := newOptimizer(t, row.name, row.config)
				before := torch.CPU(1).Memory().Live
				tensors, counts := save(opt)
				must.Do(t, other.Load(tensors, counts, []optim.Placement{{torch.CPU(1), resumed[:2]},
					{torch.CPU(2), resumed[2:]}}))
				differ(t, "loaded state", state(other), state(opt))
				if step > 0 {
					want := row.slots * 4 * (resumed[0].Numel() + resumed[1].Numel())
					if got := torch.CPU(1).Memory().Live - before; got != want {
						t.Errorf("cpu:1 holds %d bytes of state, want %d", got, want)
					}
				}

				setGrads(c, resumed, step, without(step)...)
				other.Step(c, resumed)
				setGrads(c, model, step, without(step)...)
				opt.Step(c, model)
				differ(t, "parameters", values(resumed), values(model))
				differ(t, "state", state(other), state(opt))
				other.Close()
				for _, p := range resumed {
					p.Param.Free()
				}
			}
		})
	}
}

func TestLoadRefusesWhatDoesNotFit(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	model := newModel(t, torch.CPU(0))
	opt := newOptimizer(t, "adam", optim.Config{})
	setGrads(c, model, 0, "b.bias")
	opt.Step(c, model)
	before := state(opt)
	tensors, steps := save(opt)

	// edit returns the tensors with one of them changed; f may return no tensor.
	edit := func(name string, f func(s safetensors.Tensor) []safetensors.Tensor) []safetensors.Tensor {
		var out []safetensors.Tensor
		for _, s := range tensors {
			if s.Name == name {
				out = append(out, f(s)...)
			} else {
				out = append(out, s)
			}
		}
		return out
	}
	count := func(name string, n int64) map[string]int64 {
		out := maps.Clone(steps)
		out[name] = n
		return out
	}
	fewer := maps.Clone(steps)
	delete(fewer, "a.bias")
	whole := []optim.Placement{{Device: torch.CPU(5), Params: model}}

	for _, row := range []struct {
		reason  string
		tensors []safetensors.Tensor
		steps   map[string]int64
		places  []optim.Placement
		want    string
	}{
		{"a tensor is missing", edit("exp_avg.a.bias",
			func(s safetensors.Tensor) []safetensors.Tensor { return nil }), steps, whole,
			`no tensor "exp_avg.a.bias"`},
		{"a tensor is unknown", edit("exp_avg.a.bias", func(s safetensors.Tensor) []safetensors.Tensor {
			other := s
			other.Name = "momentum.a.bias"
			return []safetensors.Tensor{s, other}
		}), steps, whole, `state of no parameter of the model under this optimizer: steps [], tensors ` +
			`["momentum.a.bias"]`},
		{"a tensor is there twice", append(tensors[:len(tensors):len(tensors)], tensors[0]), steps, whole,
			`"exp_avg.a.bias" is there twice`},
		{"a shape differs", edit("exp_avg_sq.b.weight", func(s safetensors.Tensor) []safetensors.Tensor {
			s.Shape = []int64{3, 7, 5}
			return []safetensors.Tensor{s}
		}), steps, whole, `"exp_avg_sq.b.weight" is F32[3 7 5], the parameter is F32[3 5 7]`},
		{"a type differs", edit("exp_avg_sq.b.weight", func(s safetensors.Tensor) []safetensors.Tensor {
			s.DType = safetensors.I32
			return []safetensors.Tensor{s}
		}), steps, whole, `is I32[3 5 7]`},
		{"the bytes are too few", edit("exp_avg_sq.a.weight",
			func(s safetensors.Tensor) []safetensors.Tensor {
				s.Load = func(write func([]byte) error) error { return write(make([]byte, 12)) }
				return []safetensors.Tensor{s}
			}), steps, whole, `"exp_avg_sq.a.weight": from: float32[257 131] holds 134668 bytes, ` +
			`the data has 12`},
		{"reading fails", edit("exp_avg_sq.a.weight", func(s safetensors.Tensor) []safetensors.Tensor {
			s.Load = func(func([]byte) error) error { return errors.New("the disk is gone") }
			return []safetensors.Tensor{s}
		}), steps, whole, `"exp_avg_sq.a.weight": the disk is gone`},
		{"a count is missing", tensors, fewer, whole, `no count of steps for parameter "a.bias"`},
		{"a count is unknown", tensors, count("d.bias", 1), whole, `steps ["d.bias"]`},
		{"a count is negative", tensors, count("a.bias", -1), whole,
			`no count of steps for parameter "a.bias"`},
		{"a count without tensors", tensors, count("b.bias", 1), whole, `no tensor "exp_avg.b.bias"`},
		{"tensors without a count", tensors, count("a.bias", 0), whole,
			`["exp_avg.a.bias" "exp_avg_sq.a.bias"]`},
		{"tensors alone", tensors, nil, whole, `no count of steps`},
		{"counts alone", nil, steps, whole, `no tensor`},
		{"a parameter has no place", tensors, steps, []optim.Placement{{torch.CPU(5), model[1:]}},
			`steps ["b.weight"]`},
		{"a parameter has two places", tensors, steps, append(whole, optim.Placement{Params: model[:1]}),
			`"b.weight", or it is placed twice`},
	} {
		err := opt.Load(row.tensors, row.steps, row.places)
		if err == nil || !strings.HasPrefix(err.Error(), "optim: load: ") ||
			!strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: got %v, want %s", row.reason, err, row.want)
		}
		differ(t, row.reason, state(opt), before)
	}
	if live := torch.CPU(5).Memory().Live; live != 0 {
		t.Errorf("failed loads left %d bytes", live)
	}
}
