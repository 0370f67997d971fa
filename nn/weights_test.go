package nn_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/safetensors"
	"penstock.example/torch"
)

// classifier is a model of a body and a head.
func classifier(classes int64) *nn.Sequential {
	return nn.NewSequential().
		Add("body", nn.NewSequential(nn.NewLinear(2, 3), nn.NewBatchNorm1d(3, nn.BatchNormConfig{}))).
		Add("fc", nn.NewLinear(3, classes))
}

// f32 is a tensor of ascending numbers.
func f32(name string, shape ...int64) safetensors.Tensor {
	t := safetensors.Tensor{Name: name, DType: safetensors.F32, Shape: shape}
	size, _ := t.Size()
	for i := range size / 4 {
		t.Data = binary.LittleEndian.AppendUint32(t.Data, math.Float32bits(float32(i)+0.5))
	}
	return t
}

// state is the classifier's, without num_batches_tracked, which files of old do not have.
func state(prefix string, classes int64) []safetensors.Tensor {
	p := func(name string) string { return prefix + name }
	return []safetensors.Tensor{f32(p("body.0.weight"), 3, 2), f32(p("body.0.bias"), 3),
		f32(p("body.1.weight"), 3), f32(p("body.1.bias"), 3),
		f32(p("body.1.running_mean"), 3), f32(p("body.1.running_var"), 3), f32(p("fc.weight"), classes,
			3), f32(p("fc.bias"), classes)}
}

func write(t *testing.T, tensors ...safetensors.Tensor) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "w.safetensors")
	must.Do(t, safetensors.WriteFile(path, tensors, nil))
	return path
}

func TestLoadWeightsByRules(t *testing.T) {
	rename := func(rules ...string) (list []nn.Rename) {
		for _, text := range rules {
			r := must.Get(nn.ParseRename(text))(t)
			list = append(list, r)
		}
		return list
	}
	old := state("", 4)
	for i := range old {
		old[i].Name = strings.Replace(old[i].Name, "body.0.", "features.conv.0.", 1)
		old[i].Name = strings.Replace(old[i].Name, "body.1.", "features.conv.norm.", 1)
	}
	for _, row := range []struct {
		reason string
		file   []safetensors.Tensor
		o      nn.WeightsConfig
		want   string
		fresh  string // parameters that the file has nothing for
	}{
		{"as it is", state("", 4), nn.WeightsConfig{}, "loaded 8 of 9; not in the file: " +
			"body.1.num_batches_tracked", ""},
		{"a prefix taken off", state("module.", 4), nn.WeightsConfig{Rename: rename("module=")},
			"loaded 8 of 9; not in the file: body.1.num_batches_tracked", ""},
		{"other names", old, nn.WeightsConfig{Rename: rename("features.conv=body", "norm=1")},
			"loaded 8 of 9; not in the file: body.1.num_batches_tracked", ""},
		{"another head", state("", 7), nn.WeightsConfig{Skip: []string{"fc.*"}},
			"loaded 6 of 9; skipped: fc.weight, fc.bias; not in the file: body.1.num_batches_tracked",
			"fc.weight fc.bias"},
		{"a part", append(state("", 4)[:2], f32("extra", 1)), nn.WeightsConfig{Partial: true},
			"loaded 2 of 9; not in the file: body.1.weight, body.1.bias, body.1.running_mean, " +
				"body.1.running_var and 3 more; not in the model: extra",
			"body.1.weight body.1.bias body.1.running_mean body.1.running_var fc.weight fc.bias"},
		{"what the model has no use for", append(state("", 4), f32("h.0.attn.bias", 1, 1),
			f32("h.11.attn.bias", 1, 1)),
			nn.WeightsConfig{Skip: []string{"h.*.attn.bias"}}, "loaded 8 of 9; skipped: h.0.attn.bias, " +
				"h.11.attn.bias; not in the file: body.1.num_batches_tracked", ""},
		{"rules that match nothing", state("", 4), nn.WeightsConfig{Rename: rename("module=", "fc=fc"),
			Skip: []string{"fc.*", "head.*"}},
			"loaded 6 of 9; skipped: fc.weight, fc.bias; not in the file: body.1.num_batches_tracked; " +
				"rules that match no name: module=, head.*", "fc.weight fc.bias"},
	} {
		t.Run(row.reason, func(t *testing.T) {
			c := torchtest.New(t, torch.Options{})
			path := write(t, row.file...)
			for _, exists := range []bool{false, true} {
				m := classifier(4)
				var before []byte
				if exists {
					nn.Materialise(c, nn.State(m), 3)
					before = torch.Bytes(nn.State(m)[7].Tensor())
				}
				checked := must.Get(nn.CheckWeights(path, m, row.o))(t)
				report, err := nn.LoadWeights(c, path, m, row.o)
				if err != nil || report.String() != row.want || checked.String() != row.want {
					t.Errorf("got %v and %q, %v\nwant %q", checked, report, err, row.want)
				}
				for _, p := range nn.State(m) {
					switch left := slices.Contains(strings.Fields(row.fresh+" "+
						"body.1.num_batches_tracked"), p.Name); {
					case left && p.Exists() != exists:
						t.Errorf("%s exists: %v", p.Name, p.Exists())
					case !left && !bytes.Equal(torch.Bytes(p.Tensor()), f32("", p.Shape()...).Data):
						t.Errorf("%s is not what the file has", p.Name)
					}
				}
				if exists && row.fresh != "" && !bytes.Equal(before, torch.Bytes(nn.State(m)[7].Tensor())) {
					t.Error("a parameter that was left out has changed")
				}
				nn.Free(m)
			}
		})
	}
}

func TestLoadWeightsConverts(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	half := safetensors.Tensor{Name: "weight", DType: safetensors.F16, Shape: []int64{1, 2},
		Data: []byte{0, 0x3c, 0, 0xc0}}
	wide := safetensors.Tensor{Name: "bias", DType: safetensors.F64, Shape: []int64{1},
		Data: binary.LittleEndian.AppendUint64(nil, math.Float64bits(0.1))}
	m := nn.NewLinear(2, 1)
	defer nn.Free(m)
	report, err := nn.LoadWeights(c, write(t, half, wide), m, nn.WeightsConfig{})
	if err != nil || report.String() != "loaded 2 of 2, 2 of them converted" {
		t.Fatalf("%v, %v", report, err)
	}
	if got := append(torch.Values[float32](m.Weight.Tensor()),
		torch.Values[float32](m.Bias.Tensor())...); !slices.Equal(got, []float32{1, -2, 0.1}) {
		t.Errorf("got %v", got)
	}
}

// Whatever does not fit is said once, with what to do, and nothing has changed.
func TestLoadWeightsRefuses(t *testing.T) {
	whole := state("", 4)
	integers := f32("fc.bias", 4)
	integers.DType = safetensors.I32
	for _, row := range []struct {
		reason string
		file   []safetensors.Tensor
		o      nn.WeightsConfig
		want   []string
		lines  int
	}{
		{"other names", []safetensors.Tensor{f32("x", 1), f32("y", 1)}, nn.WeightsConfig{},
			[]string{`8 not in the file: body.0.weight, body.0.bias, body.1.weight, body.1.bias and 4 ` +
				`more; rename`, `2 not in the model: x, y; rename or skip them, or load in part`}, 3},
		{"another head", state("", 7), nn.WeightsConfig{},
			[]string{`2 of another shape: "fc.weight" is [7 3] in the file and [4 3] in the model, ` +
				`"fc.bias" is [7] in the file and [4] in the model; skip them`}, 2},
		{"in part, with another head", state("", 7), nn.WeightsConfig{Partial: true},
			[]string{`"fc.bias" is [7] in the file`}, 2},
		{"a name twice", append(state("", 4), f32("net.fc.bias", 4)),
			nn.WeightsConfig{Rename: []nn.Rename{{Old: "net"}}},
			[]string{`1 names twice: "fc.bias" and "net.fc.bias" both become "fc.bias"; rename ` +
				`only one of the two`}, 2},
		{"a slip in the rules", state("net.", 4), nn.WeightsConfig{Rename: []nn.Rename{{Old: "nett"}},
			Skip: []string{"fcs.*"}},
			[]string{`2 rules that match no name: nett=, fcs.*; leave them out, or correct their names`}, 4},
		{"integers", append(whole[:7:7], integers), nn.WeightsConfig{},
			[]string{`"fc.bias" is I32 in the file and F32 in the model; skip them`}, 2},
		{"nothing of it", []safetensors.Tensor{f32("x", 1)}, nn.WeightsConfig{Partial: true},
			[]string{"the model has none of its tensors"}, 2},
	} {
		t.Run(row.reason, func(t *testing.T) {
			c := torchtest.New(t, torch.Options{})
			path := write(t, row.file...)
			m, exists := classifier(4), classifier(4)
			defer nn.Free(exists)
			nn.Materialise(c, nn.State(exists), 1)
			var before [][]byte
			for _, p := range nn.State(exists) {
				before = append(before, torch.Bytes(p.Tensor()))
			}
			for _, m := range []*nn.Sequential{m, exists} {
				_, err := nn.LoadWeights(c, path, m, row.o)
				if err == nil || strings.Count(err.Error(), "\n") != row.lines-1 ||
					!strings.Contains(err.Error(), path) {
					t.Fatalf("got %v", err)
				}
				for _, want := range row.want {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("got %v, want %q in it", err, want)
					}
				}
				var of *nn.WeightsError
				if _, checked := nn.CheckWeights(path, m, row.o); errors.As(err, &of) != (checked != nil) {
					t.Errorf("the check says %v", checked)
				}
			}
			for i, p := range nn.State(exists) {
				if !bytes.Equal(before[i], torch.Bytes(p.Tensor())) {
					t.Errorf("%s has changed", p.Name)
				}
			}
			for _, p := range nn.State(m) {
				if p.Exists() {
					t.Errorf("%s was made", p.Name)
				}
			}
		})
	}
}

// A tensor that is skipped need not have a dtype that is known. One that is not a number is named.
func TestLoadWeightsOfOthers(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	path := filepath.Join(t.TempDir(), "w.safetensors")
	for want, row := range map[string]struct {
		weight float32
		skip   []string
	}{
		"loaded 1 of 2; skipped: bias, scale": {1, []string{"bias", "scale"}},
		"1 of a type that cannot be converted: \"bias\" is F8_E4M3 in the file and F32 in the model": {1,
			[]string{"scale"}},
		"nn: loading \"weight\" from " + path + ": element 1 is not a number": {float32(math.NaN()),
			[]string{"bias", "scale"}},
	} {
		header := `{"weight":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},` +
			`"bias":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[8,9]},` +
			`"scale":{"dtype":"F4","shape":[2],"data_offsets":[9,10]}}`
		content := append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...)
		content = must.Get(binary.Append(content, binary.LittleEndian, []float32{1, row.weight}))(t)
		must.Do(t, os.WriteFile(path, append(content, 1, 2), 0o666))
		m := nn.NewLinear(2, 1)
		report, err := nn.LoadWeights(c, path, m, nn.WeightsConfig{Skip: row.skip})
		if got := fmt.Sprint(report, err); !strings.Contains(got, want) {
			t.Errorf("%s; want %s", got, want)
		}
		nn.Free(m)
	}
}

func TestLoadWeightsOfTiedParameters(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	tied := func() *nn.Sequential {
		first := nn.NewLinearNoBias(2, 2)
		return nn.NewSequential().Add("in", first).Add("out", nn.NewLinearShared(first.Weight, false))
	}
	for name, file := range map[string][]safetensors.Tensor{
		"once": {f32("in.weight", 2, 2)}, "by the other name": {f32("out.weight", 2, 2)},
		"twice": {f32("in.weight", 2, 2), f32("out.weight", 2, 2)},
	} {
		m := tied()
		report, err := nn.LoadWeights(c, write(t, file...), m, nn.WeightsConfig{})
		if err != nil || report.String() != "loaded 1 of 1" ||
			!bytes.Equal(torch.Bytes(nn.State(m)[0].Tensor()), f32("", 2, 2).Data) {
			t.Errorf("%s: %v, %v", name, report, err)
		}
		nn.Free(m)
	}
}

func TestExistingParametersAloneAreLoaded(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	m := classifier(4)
	defer nn.Free(m)
	nn.Materialise(c, nn.State(m)[:2], 1)
	report, err := nn.LoadWeights(c, write(t, state("", 4)...), m, nn.WeightsConfig{Existing: true})
	if err != nil || report.Loaded != 8 {
		t.Fatalf("%v, %v", report, err)
	}
	for i, p := range nn.State(m) {
		if p.Exists() != (i < 2) {
			t.Errorf("%s exists: %v", p.Name, p.Exists())
		}
	}
	if !bytes.Equal(torch.Bytes(nn.State(m)[1].Tensor()), f32("", 3).Data) {
		t.Error("body.0.bias is not what the file has")
	}
}

// TestUnfilledParametersAreNotInitialised: values that a file replaces are not drawn, others are.
func TestUnfilledParametersAreNotInitialised(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	m := classifier(4)
	defer nn.Free(m)
	drawn := map[string]bool{}
	for _, p := range nn.State(m) {
		p.SetInit(func(c *torch.Ctx, t *torch.Tensor) { drawn[p.Name] = true; c.Zero_(t) })
	}
	o := nn.WeightsConfig{Skip: []string{"fc.bias"}, Unfilled: true}
	must.Get(nn.CheckWeights(write(t, state("", 4)...), m, o))(t)
	nn.Materialise(c, nn.State(m), 1)
	if want := map[string]bool{"body.1.num_batches_tracked": true, "fc.bias": true}; !maps.Equal(drawn,
		want) {
		t.Errorf("drawn are %v, want %v", drawn, want)
	}
}

func TestParseRename(t *testing.T) {
	for _, text := range []string{"", "=", "a", "a=b=c", ".a=b", "a=b.", "a..b=c"} {
		if r, err := nn.ParseRename(text); err == nil || !strings.Contains(err.Error(), "want OLD=NEW") {
			t.Errorf("%q is %v, %v", text, r, err)
		}
	}
}

func savable() *nn.Sequential {
	s := nn.NewSequential().Add("in", nn.NewLinear(4, 4)).Add("norm", nn.NewBatchNorm1d(4,
		nn.BatchNormConfig{}))
	return s.Add("out", nn.NewLinearShared(s.Layers()[0].Layer.(*nn.Linear).Weight, true))
}

func TestSavedModelsLoad(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	path := filepath.Join(t.TempDir(), "m.safetensors")
	saved := savable()
	defer nn.Free(saved)
	nn.Materialise(c, nn.State(saved), 3)
	must.Do(t, nn.Save(path, saved))
	fresh, there := savable(), savable()
	defer nn.Free(fresh)
	defer nn.Free(there)
	nn.Materialise(c, nn.State(there), 4)
	before := there.Layers()[0].Layer.(*nn.Linear).Weight.Tensor()
	for _, m := range []*nn.Sequential{fresh, there} {
		must.Get(nn.LoadWeights(c, path, m, nn.WeightsConfig{}))(t)
		for i, p := range nn.State(m) {
			want := nn.State(saved)[i]
			if p.Name != want.Name || !bytes.Equal(torch.Bytes(p.Tensor()), torch.Bytes(want.Tensor())) {
				t.Errorf("%s is not what was saved", p.Name)
			}
		}
	}
	if there.Layers()[0].Layer.(*nn.Linear).Weight.Tensor() != before {
		t.Error("a parameter that existed was replaced")
	}
	file := must.Get(safetensors.Open(path))(t)
	defer file.Close()
	if n := len(file.Tensors()); n != 8 {
		t.Errorf("%d tensors in the file, want 8: the shared weight once", n)
	}
}
